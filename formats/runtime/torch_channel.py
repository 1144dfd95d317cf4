"""What PyTorch's sides of `fm-bench kernels` and `fm-bench engine` share: the socket, and errors.

fm-bench starts `python3 -c` with this text, followed by torch_experts.py or torch_loops.py, which
ends in main(serve).  Standard input is the socket.  An exception before the first request becomes a
line "error SENTENCE", one in a request "cannot SENTENCE".
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
    """`reply` gives the arguments of say for a line of fm-bench's, until it hangs up."""
    say(channel, "ready")
    for line in channel:
        try:
            say(channel, *reply(line))
        except Exception as error:
            say(channel, f"cannot {sentence(error)}")


def main(serve):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # fm-bench decides, and then hangs up
    channel = socket.socket(fileno=0).makefile("rwb")
    try:
        import torch

        serve(torch, channel)
    except (EOFError, BrokenPipeError):
        sys.exit(0)
    except Exception as error:
        say(channel, f"error {sentence(error)}")
        while channel.read(1 << 20):  # fm-bench reads that when it has sent what it is sending
            pass
