"""What `hps train` is asked to do, each option declared once: type, limits, default and words.

Of one declaration come the flag, the key of a `--config` file, the field of `TrainOptions` with its
check, and its row of docs/options.md. Nothing here imports torch: `hps train --help` is
made of it. Above it: `hps.train.options`, `hps.cli.train_flags`. Below it: hps.config, hps.reader.
"""
