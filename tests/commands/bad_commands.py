"""Wrong inputs of the commands that use what was made: export, bench, analyze, report, push."""

from __future__ import annotations

from qpd.errors.codes import ErrorCode as Code
from tests.commands.bad_row import Row, row

EXPORTS = [
    row("export run --format onx", Code.COMMAND_LINE, "--format onx", "did you mean onnx?"),
    row("export run", Code.COMMAND_LINE, "Missing option '--format'"),
    row("export run --format c --format sb3", Code.COMMAND_LINE, "'--format': is given twice"),
    row("export absent --format c", Code.STUDENT_MISSING, "absent: no such file or folder; give"),
    row("export bare --format c", Code.STUDENT_MISSING, "bare"),
    row("export half --format c", Code.STUDENT_MISSING, "half", "`qpd quantize half` makes it"),
    row("export note.txt --format c", Code.STUDENT_DAMAGED, "note.txt"),
    row("export misfit.zip --format c", Code.STUDENT_MISSING, "misfit.zip: is no run and no quan"),
    row("export half/distilled.safetensors --format c", Code.STUDENT_DAMAGED, "half/distilled"),
    row("export cutstudent --format c", Code.STUDENT_DAMAGED, "cutstudent/quantized.safetensors"),
    row("export oldstudent --format c", Code.STUDENT_FORMAT, "format version 0", "reads 2"),
    row("export run --format c -o foreign", Code.OUTPUT_TAKEN, "foreign: holds something that is"),
    row("export run --format c -o note.txt", Code.OUTPUT_TAKEN, "note.txt: is a file; name a new"),
    row("export run --format c -o note.txt/x", Code.FILE_SYSTEM, "note.txt/x: cannot be made: "),
    row("export run --format c -o .", Code.OUTPUT_TAKEN, ".: is the current folder", "with -o"),
    row("export run --format c -o /proc/x", Code.FILE_SYSTEM, "/proc/x: cannot be made: "),
]

CORES = [
    row("fpga run --device xc7a15", Code.COMMAND_LINE, "--device xc7a15", "did you mean xc7a15t?"),
    row("fpga run", Code.COMMAND_LINE, "Missing option '--device'"),
    row("fpga half --device xc7a15t", Code.STUDENT_MISSING, "`qpd quantize half` makes it"),
    row("fpga run --device ecp5-25k --multipliers 0", Code.COMMAND_LINE, "--multipliers"),
    row(
        "fpga run --device ecp5-25k --constants ram",
        Code.COMMAND_LINE,
        "block-ram, weights, fabric",
    ),
    row("export run --format c --constants fabric", Code.COMMAND_LINE, "--format c has none"),
    row(
        "export run --format systemverilog --multipliers x", Code.COMMAND_LINE, "1,000,000, or all"
    ),
    row("fpga run --device ecp5-25k --observations 0", Code.COMMAND_LINE, "--observations"),
]

SELECTIONS = [
    row("select absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("select", Code.COMMAND_LINE, "Missing argument"),
    row("select fresh", Code.RUN_PHASE_MISSING, "fresh: holds no student yet"),
    row("select played --share 2", Code.COMMAND_LINE, "--share"),
]

BENCHES = [
    row("bench absent", Code.STUDENT_MISSING, "absent"),
    row("bench half", Code.STUDENT_MISSING, "half", "`qpd quantize half` makes it"),
    row("bench emptystudent", Code.STUDENT_DAMAGED, "emptystudent/quantized.safetensors"),
    row("bench run --sizes XXXS", Code.COMMAND_LINE, "--sizes XXXS", "did you mean XXS?"),
    row("bench run --runtimes onnx", Code.COMMAND_LINE, "--runtimes onnx", "onnx-"),
    row("bench run --runtimes ''", Code.COMMAND_LINE, "after --runtimes: an empty word"),
    row("bench run --threads 0", Code.COMMAND_LINE, "--threads 0", "1,all"),
    row("bench run --threads many", Code.COMMAND_LINE, "--threads many", "1,all"),
    row("bench run --rounds 0", Code.COMMAND_LINE, "--rounds", "'0' must be"),
    row("bench run --seconds 0", Code.COMMAND_LINE, "--seconds", "'0' must be"),
    row("bench run --frames nois", Code.COMMAND_LINE, "--frames nois", "did you mean noise?"),
    row(
        "bench run -o note.txt",
        Code.OUTPUT_TAKEN,
        "note.txt: exists and is not a device",
        "another -o",
    ),
    row("bench run -o no/device.json", Code.FILE_SYSTEM, "no/device.json", "does not exist"),
    row("bench run -o bare", Code.OUTPUT_TAKEN, "bare: exists and is not a device", "another -o"),
    row("bench run --device-name 'a\nb'", Code.COMMAND_LINE, "--device-name a\\nb: one line"),
    row("bench run --device-name ' '", Code.COMMAND_LINE, "--device-name  : one line of 1 to 100"),
    row("bench run --ssh me@", Code.COMMAND_LINE, "--ssh me@", "user@host"),
    row("bench run --ssh -x", Code.COMMAND_LINE, "--ssh -x", "user@host"),
    row("bench run --ssh me@127.0.0.1:9 --runtimes torch", Code.COMMAND_LINE, "over ssh"),
    row("bench run --ssh me@127.0.0.1:9 --runtimes c", Code.REMOTE_DEVICE, "--ssh me@127.0.0.1:9"),
]

ANALYSES = [
    row("analyze fps absent.json", Code.FILE_SYSTEM, "absent.json: No such file"),
    row("analyze fps bare", Code.FILE_SYSTEM, "bare: Is a directory"),
    row("analyze fps empty.json", Code.DEVICE_RECORD, "empty.json", "qpd bench"),
    row("analyze fps junk.json", Code.DEVICE_RECORD, "junk.json: is not JSON from `qpd bench`"),
    row("analyze fps list.json", Code.DEVICE_RECORD, "list.json: is not JSON from `qpd bench`"),
    row("analyze fps other.json", Code.DEVICE_RECORD, "other.json: holds nothing that `qpd"),
    row("analyze fps oldschema.json", Code.DEVICE_RECORD, "oldschema.json: has schema 0"),
    row("analyze fps norows.json", Code.DEVICE_RECORD, "norows.json: device: Field required"),
    row("analyze fps latin.json", Code.FILE_SYSTEM, "latin.json: is not text"),
    row("analyze fps", Code.COMMAND_LINE, "Missing argument"),
    row("analyze fsp junk.json", Code.COMMAND_LINE, "No such command 'fsp'", "fps"),
    row("analyze returns absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row(
        "analyze returns fresh",
        Code.NOTHING_MEASURED,
        "no policy was evaluated yet",
        "`qpd evaluate`",
    ),
    row("analyze returns oldrun", Code.RUN_FORMAT, "oldrun/manifest.json: format_version 0"),
    row("analyze returns half", Code.NOTHING_MEASURED, "half: no policy was", "`qpd evaluate`"),
    row("analyze returns played -o note.txt/x", Code.FILE_SYSTEM, "note.txt/x"),
    row("analyze sizes bare", Code.RUN_NOT_A_RUN, "bare: is neither a run directory"),
    row("analyze pareto bare", Code.RUN_NOT_A_RUN, "bare: is neither a run directory"),
    row("analyze pareto run --devices other.json", Code.DEVICE_RECORD, "other.json: holds nothing"),
    row("analyze paper absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("analyze paper bare", Code.RUN_NOT_A_RUN, "bare: is neither a run directory"),
    row("analyze paper", Code.COMMAND_LINE, "Missing argument"),
    row("analyze paper played", Code.NOTHING_MEASURED, "played: no run of Breakout", "claims"),
    row("analyze paper run --devices other.json", Code.DEVICE_RECORD, "other.json: holds nothing"),
    row("analyze umap absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("analyze umap run --states 3", Code.COMMAND_LINE, "--states", "'3' must be"),
    row("analyze outputs agent.zip --states 99999999999999999999", Code.COMMAND_LINE, "100000"),
    row("analyze umap run --critic me", Code.COMMAND_LINE, "--critic", "'me'", "'student'"),
    row("analyze umap fresh", Code.STUDENT_MISSING, "fresh/distilled.safetensors: no such file"),
    row("analyze outputs absent.zip", Code.TEACHER_NOT_FOUND, "absent.zip: no such file"),
    row("analyze outputs agent.zip --temperatures 0,1", Code.COMMAND_LINE, "temperature 0", "tau"),
    row("analyze outputs agent.zip --temperatures a", Code.COMMAND_LINE, "'a'", "0.01,1,3"),
    row("analyze outputs agent.zip --seed -1", Code.COMMAND_LINE, "--seed", "-1"),
    row("analyze quantization absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("analyze quantization fresh", Code.NOTHING_MEASURED, "fresh: no return by bits"),
]

REPORTS = [
    row("report vast.zip", Code.RUN_NOT_A_RUN, "of an agent: `qpd run --teacher vast.zip`"),
    row("report absent", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("report fresh", Code.NOTHING_MEASURED, "fresh: this run has not begun"),
    row("report run -o page.pdf", Code.COMMAND_LINE, "-o page.pdf: a report is an .html file"),
    row("report run -o no/page.html", Code.FILE_SYSTEM, "no/page.html: there is no folder no"),
    row("report run --devices other.json", Code.DEVICE_RECORD, "other.json: holds nothing"),
    row("report run --video-seconds 0", Code.COMMAND_LINE, "--video-seconds", "'0' must be"),
    row("report newrun", Code.RUN_FORMAT, "newrun/manifest.json: format_version 99"),
]

PUSHES = [
    row("push run notarepo", Code.COMMAND_LINE, "'notarepo': is not a repository name", "org/name"),
    row("push run a/b/c", Code.COMMAND_LINE, "'a/b/c': is not a repository name", "org/name"),
    row("push absent me/x --dry-run", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("push half me/x --dry-run", Code.RUN_PHASE_MISSING, "half", "`qpd quantize half` makes it"),
    row("push run me/x --dry-run", Code.NOTHING_MEASURED, "run", "`qpd evaluate run --policy qat`"),
    row("push run me/x --dry-run --formats c,exe", Code.COMMAND_LINE, "exe: one of c, onnx"),
    row("push played me/x --dry-run -o .", Code.OUTPUT_TAKEN, ".: is the current folder", "-o"),
    row("push cutstudent me/x --dry-run", Code.NOTHING_MEASURED, "qpd evaluate cutstudent"),
    row("push run me/x --dry-run --formats onx", Code.COMMAND_LINE, "did you mean onnx?"),
]

COMMANDS = [
    row("runn ci", Code.COMMAND_LINE, "No such command 'runn'", "run"),
    row("run", Code.COMMAND_LINE, "no recipe: give one", "--teacher AGENT"),
    row("run ci extra", Code.COMMAND_LINE, "unexpected extra argument"),
    row("run ci --sed 1", Code.COMMAND_LINE, "No such option: --sed", "--seed"),
    row("run ci --set", Code.COMMAND_LINE, "--set", "requires an argument"),
    row("show", Code.COMMAND_LINE, "Missing argument", "runs"),
    row("show run --jsn", Code.COMMAND_LINE, "No such option: --jsn", "--json"),
    row("recipes ci extra", Code.COMMAND_LINE, "unexpected extra argument"),
    row("recipes quikstart", Code.RECIPE_NOT_FOUND, "is no shipped recipe", "quickstart?"),
    row("recipes --jso", Code.COMMAND_LINE, "No such option: --jso", "--json"),
    row("doctor extra", Code.COMMAND_LINE, "unexpected extra argument"),
    row("show absent --json", Code.RUN_NOT_A_RUN, "absent: is not a run directory"),
    row("run ci --json --set seed=-1", Code.RECIPE_WRONG_VALUE, "seed: -1"),
]

ROWS: list[Row] = [*EXPORTS, *CORES, *SELECTIONS, *BENCHES, *ANALYSES, *REPORTS, *PUSHES, *COMMANDS]
