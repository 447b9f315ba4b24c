"""One live page over trainers, servers, ranks and published models: `hps dashboard`.

Above it: `hps.cli.dashboard`. A collector (collector.py) asks each target (watched.py) every few
seconds and keeps what it was told (history.py); a server (server.py) shows that as a page, whose
files lie in web/. The page asks the collector alone, and the collector changes nothing anywhere.
"""
