"""The socket and error replies for the PyTorch programs that `fm-bench kernels` and `fm-bench engine` run.

fm-bench starts `python3 -c` with this text, followed by torch_experts.py or torch_loops.py, which
ends in main(serve).  Standard input is the socket.  An exception before the first request is reported
as a line "error SENTENCE", an exception during a request as "cannot SENTENCE".
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # import nothing from the current directory

import signal  # noqa: E402
import socket  # noqa: E402


def sentence(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def say(channel, text, raw=b""):
    channel.write(text.encode() + b"\n")
    channel.write(raw)
    channel.flush()


def answer(channel, reply):
    """For each request line until fm-bench closes the socket, send what reply(line) returns: the
    arguments of say."""
    say(channel, "ready")
    for line in channel:
        try:
            say(channel, *reply(line))
        except Exception as error:
            say(channel, f"cannot {sentence(error)}")


def main(serve):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # fm-bench handles it and closes the socket
    channel = socket.socket(fileno=0).makefile("rwb")
    try:
        import torch

        serve(torch, channel)
    except (EOFError, BrokenPipeError):
        sys.exit(0)
    except Exception as error:
        say(channel, f"error {sentence(error)}")
        while channel.read(1 << 20):  # fm-bench reads the error only after it has sent all its data
            pass
