"""SB3 zips and pickles read as data, tensor by tensor; nothing is unpickled."""
