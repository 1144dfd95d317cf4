"""Measure how much of a remote bundle the export of one member fetches.  The bundle's folder is served over
HTTP with range requests and mounted with rclone(1); a member is exported from there, and the server counts the
bytes that it sends.  Needs rclone, fusermount3 and /dev/fuse; status 77 without them.

    PATH=build/bin:$PATH python3 -B tests/measure/remote.py family.fm [--budget R] [--layout NAME]
"""

import argparse
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time


class Counted(http.server.BaseHTTPRequestHandler):
    """Serves GET and HEAD requests for the files in one folder, or for one range of a file."""

    protocol_version = "HTTP/1.1"
    folder, sent, requests = None, 0, 0
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def answer(self, body):
        name = self.path.lstrip("/")
        if not name:
            page = "".join(f'<a href="{n}">{n}</a>\n' for n in sorted(os.listdir(self.folder))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if body:
                self.wfile.write(page)
            return
        path = os.path.join(self.folder, os.path.basename(name))
        if not os.path.isfile(path):
            self.send_error(404)
            return
        size = os.path.getsize(path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(wanted[1]) if wanted else 0
        last = min(int(wanted[2]), size - 1) if wanted and wanted[2] else size - 1
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        with open(path, "rb") as f:
            f.seek(first)
            left, sent = last - first + 1 if body else 0, 0
            try:
                while left:
                    piece = f.read(min(left, 1 << 16))
                    self.wfile.write(piece)
                    left, sent = left - len(piece), sent + len(piece)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
        with self.lock:
            Counted.sent += sent
            Counted.requests += body

    def do_GET(self):
        self.answer(True)

    def do_HEAD(self):
        self.answer(False)


def measure(bundle, mounted, options, budget, layout):
    """Export from a fresh mount; returns bytes sent, requests, bytes of the export, and seconds."""
    mount = tempfile.mkdtemp(dir=mounted)
    out, cache = os.path.join(mounted, "out"), os.path.join(mounted, "cache")
    url = f"http://127.0.0.1:{Counted.port}"
    rclone = subprocess.Popen(["rclone", "mount", "--read-only", "--cache-dir", cache, *options,
                               "--http-url", url, ":http:", mount], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if os.path.ismount(mount):
                break
            time.sleep(0.1)
        Counted.sent = Counted.requests = 0
        began = time.time()
        subprocess.run(["fm-pack", "-q", "-T", "1", "--export", out, "--layout", layout, "--budget", budget,
                        os.path.join(mount, bundle)], check=True, stdout=subprocess.DEVNULL)
        seconds = time.time() - began
    finally:
        subprocess.run(["fusermount3", "-u", mount], check=False)
        rclone.wait()
    weights = sum(e.stat().st_size for e in os.scandir(out))
    shutil.rmtree(out)
    shutil.rmtree(cache, ignore_errors=True)
    return Counted.sent, Counted.requests, weights, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--budget", default="0.5")
    parser.add_argument("--layout", default="ragged")
    args = parser.parse_args()
    if not shutil.which("rclone") or not shutil.which("fusermount3") or not os.path.exists("/dev/fuse"):
        print("no rclone, fusermount3 or /dev/fuse", file=sys.stderr)
        return 77
    Counted.folder, bundle = os.path.split(os.path.abspath(args.bundle))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counted)
    server.handle_error = lambda *_: None  # clients close connections early
    Counted.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    size = os.path.getsize(args.bundle)
    cache = ["--vfs-cache-mode", "full", "--buffer-size", "0"]
    ways = {"no cache": []}
    for chunk in "1M", "256k":
        ways[f"cache, {chunk}"] = cache + ["--vfs-read-chunk-size", chunk, "--vfs-read-chunk-size-limit", chunk]
    with tempfile.TemporaryDirectory() as work:
        for name, options in ways.items():
            sent, requests, weights, seconds = measure(bundle, work, options, args.budget, args.layout)
            print(f"{name:16} {sent:13,} bytes in {requests:5} requests, {sent / weights:.3f} of the export, "
                  f"{sent / size:.3f} of the file, {seconds:.1f} s", flush=True)
    return 0


sys.exit(main())
