# Runs on the other machine: builds and tests each export, then lets all of them take turns.
# Expects FOLDER, BUILDS ("name:portable" for each), ROUNDS and SECONDS_EACH.
# Prints "fact NAME VALUE" and "turn NUMBER JSON" lines, or one line of what is wrong, with status 1.
fail() {
    echo "$1"
    exit 1
}
cd "$FOLDER" || fail "the temporary folder is gone"
CC=
for compiler in gcc cc clang; do
    if command -v "$compiler" >/dev/null 2>&1; then
        CC=$compiler
        break
    fi
done
[ -n "$CC" ] || fail "no C compiler there: install gcc (Debian: apt-get install gcc make)"
command -v make >/dev/null 2>&1 || fail "no make there: install it (Debian: apt-get install make)"

for build in $BUILDS; do
    model=${build%%:*} portable=${build#*:}
    place=build/bench$portable
    make -s -j2 -C "$model" CC="$CC" NAME="bench$portable" PORTABLE="$portable" \
        "$place/qpd_test" "$place/qpd_bench" >build.log 2>&1 ||
        fail "does not compile there: $(grep -m 1 -i error build.log || tail -n 1 build.log)"
    (cd "$model" && "$place/qpd_test") >test.log 2>&1 ||
        fail "golden test fails there: $(tail -n 1 test.log)"
done

echo "fact os $(uname -srm)"
echo "fact cores $(getconf _NPROCESSORS_ONLN 2>/dev/null || nproc 2>/dev/null)"
echo "fact compiler $("$CC" --version | head -n 1)"
round=0
while [ "$round" -lt "$ROUNDS" ]; do
    number=0
    for build in $BUILDS; do
        model=${build%%:*} portable=${build#*:}
        line=$("$model/build/bench$portable/qpd_bench" "$SECONDS_EACH" "$model/observations.bin") ||
            fail "the benchmark fails there: $line"
        echo "turn $number $line"
        number=$((number + 1))
    done
    round=$((round + 1))
done
