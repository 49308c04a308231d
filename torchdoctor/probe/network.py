"""Which other machines the program speaks to: a row for each connection, and each kind of request.

Loaded by path once `socket` has been imported, before anything may connect: standard library only.
A row of `network-<pid>.log` is a letter and its columns, with tabs between them. The file is open
for one write only, and its folder is found beside the plan, because a process may be a warm image
whose launches have other plans. What C code connects to is not seen.
"""

import errno
import functools
import ipaddress
import os

CONNECTION = "c"
THROUGH_PROXY = "p"
DATAGRAM = "d"
REQUEST = "r"
_MOST_ROWS = 2000  # of each process
_MOST_NAMES = 4096
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
_DNS = (53, 5353)
_READS = ("GET", "HEAD", "OPTIONS")
_READING_PATH = "/paths-info/"  # which files a repository of a hub has, asked for with POST
# Trackers' own servers (trackers are offline), and those that give tokens for reading.
_NOT_COUNTED = (
    "wandb.ai",
    "comet.com",
    "comet.ml",
    "neptune.ai",
    "clear.ml",
    "swanlab.cn",
    "aimstack.io",
    "sentry.io",
    "segment.io",
    "oauth2.googleapis.com",
    "login.microsoftonline.com",
)
_PEERS = ("MASTER_ADDR", "PET_RDZV_ENDPOINT")  # variables that name the process group's meeting
_names: dict = {}  # addresses -> the name that was asked for
_written: set = set()  # rows that are written once
_rows = 0
_PORTS = {b"https": 443, b"wss": 443}


def _note(letter, *columns, once=False):
    """Append a row; never raises."""
    global _rows
    try:
        row = "\t".join([letter, *map(str, columns)])
        plan = os.environ["TORCHDOCTOR_PLAN"]
        key = plan, row
        if _rows >= _MOST_ROWS or "\n" in row or (once and key in _written):
            return
        _rows += 1
        if once:
            _written.add(key)
        path = "%s/channel/network-%d.log" % (os.path.dirname(plan), os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (row + "\n").encode(errors="replace"))
        finally:
            os.close(descriptor)
    except Exception:
        pass


def _plain(host):
    """Return a host as text that can be compared: no brackets, no scope, no capitals."""
    text = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    return text.strip("[]").partition("%")[0].rstrip(".").lower()


def leaves_the_machine(host, port=None):
    """Return whether a host is another machine that counts: no peer of training, no tracker's."""
    host = _plain(host)
    if not host or host == "localhost" or host.endswith(".localhost") or port in _DNS:
        return False
    try:
        address = ipaddress.ip_address(host)
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback or address.is_link_local or address.is_unspecified:
            return False
    except ValueError:
        if any(host == domain or host.endswith("." + domain) for domain in _NOT_COUNTED):
            return False
        if host.startswith("sts.") and host.endswith(".amazonaws.com"):
            return False
    return host not in _peers()


def _peers():
    """Return the hosts where the processes of a process group meet, by name and by address."""
    named = {os.environ.get(name, "") for name in _PEERS}
    hosts = {_plain(_without_port(name)) for name in named if name}
    return hosts | {address for address, name in list(_names.items()) if name in hosts}


def _without_port(text):
    if text.startswith("["):
        return text.partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def _proxies():
    """Return (host, port) of the proxies that the environment names."""
    proxies = set()
    for name, text in os.environ.items():
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy") and text:
            place = text.rpartition("://")[2].rpartition("@")[2].partition("/")[0]
            host, _, port = place.rpartition(":")
            proxies.add((_plain(host or place), int(port) if host and port.isdecimal() else 80))
    return proxies


def _connected(stream, address):
    """Note a connection, made or begun, or a datagram; `address` as socket takes it."""
    if not isinstance(address, tuple) or len(address) < 2:  # a unix socket's, or of another family
        return
    given = _plain(address[0])
    port = address[1]
    host = _names.get(given, given)
    if stream and not _proxies().isdisjoint({(host, port), (given, port)}):
        _note(THROUGH_PROXY, host, port, once=True)
    elif leaves_the_machine(given, port) and leaves_the_machine(host, port):
        _note(CONNECTION if stream else DATAGRAM, host, port, once=not stream)


def requested(host, port, method, path, target=None):
    """Note an HTTP request to a host, or through it to `target`."""
    shown, method = _plain(target or host), _plain(method).upper()
    if leaves_the_machine(shown):
        reads = method in _READS or _READING_PATH in _plain(path or "")
        _note(REQUEST, _plain(host), port, "GET" if reads else method, shown, once=True)


def _never_raising(function):
    @functools.wraps(function)
    def hook(*args, **kwargs):
        try:
            function(*args, **kwargs)
        except Exception:
            pass

    return hook


_connected, requested = _never_raising(_connected), _never_raising(requested)


def install(name, module):
    """Hook into a module that was just imported: `socket`, or a library that speaks HTTP."""
    _HOOKS[name](module)


def _wrap_socket(socket):
    internet = socket.AF_INET, socket.AF_INET6
    for name in ("connect", "connect_ex"):
        _wrap_connect(socket.socket, name, socket.SOCK_STREAM, internet)
    _wrap_sendto(socket.socket, internet)
    _wrap_names(socket)


def _wrap_connect(cls, name, stream, internet):
    old = getattr(cls, name)

    @functools.wraps(old)
    def connect(self, address):
        # To connect a datagram socket sends nothing: programs do it to learn their own address.
        is_stream = self.type == stream and self.family in internet
        try:
            result = old(self, address)
        except BlockingIOError as error:
            if is_stream:
                _connected(True, address)  # asyncio waits for the rest
            _hide_frame(error)
            raise
        except BaseException as error:
            _hide_frame(error)
            raise
        if is_stream and (name == "connect" or result in _IN_PROGRESS):
            _connected(True, address)
        return result

    setattr(cls, name, connect)


def _wrap_sendto(cls, internet):
    old, addresses = cls.sendto, set()

    def note(self, rest):
        if self.family in internet and rest and rest[-1] not in addresses:
            if len(addresses) < _MOST_NAMES:
                addresses.add(rest[-1])
            _connected(False, rest[-1])

    note = _never_raising(note)

    @functools.wraps(old)
    def sendto(self, data, *rest):
        note(self, rest)
        try:
            return old(self, data, *rest)
        except BaseException as error:
            _hide_frame(error)
            raise

    cls.sendto = sendto


def _wrap_names(socket):
    old = socket.getaddrinfo

    @functools.wraps(old)
    def getaddrinfo(host, *args, **kwargs):
        try:
            entries = old(host, *args, **kwargs)
        except BaseException as error:
            _hide_frame(error)
            raise
        if host and len(_names) < _MOST_NAMES:
            for entry in entries:
                _names[_plain(entry[4][0])] = _plain(host)
        return entries

    socket.getaddrinfo = getaddrinfo


def _wrap_http(client):
    old = client.HTTPConnection.putrequest

    @functools.wraps(old)
    def putrequest(self, method, url, *args, **kwargs):
        target = getattr(self, "_tunnel_host", None)
        if not target and "://" in str(url)[:8]:  # as a proxy is asked
            place = str(url).partition("://")[2].partition("/")[0]
            target = _without_port(place.rpartition("@")[2])
        requested(self.host, self.port, method, url, target)
        try:
            return old(self, method, url, *args, **kwargs)
        except BaseException as error:
            _hide_frame(error)
            raise

    client.HTTPConnection.putrequest = putrequest


def _wrap_httpcore(module):
    def note(request):
        url = request.url
        port = url.port or _PORTS.get(url.scheme, 80)
        requested(url.host, port, request.method, url.target)

    note = _never_raising(note)
    pool = module.ConnectionPool
    pool_async = module.AsyncConnectionPool
    old = pool.handle_request
    old_async = pool_async.handle_async_request

    @functools.wraps(old)
    def handle_request(self, request):
        note(request)
        return old(self, request)

    @functools.wraps(old_async)
    async def handle_async_request(self, request):
        note(request)
        return await old_async(self, request)

    pool.handle_request = handle_request
    pool_async.handle_async_request = handle_async_request


def _wrap_aiohttp(module):
    session = module.ClientSession
    old = session._request

    def note(self, method, url):
        base = getattr(self, "_base_url", None)
        url = module.client.URL(url) if isinstance(url, str) else url
        url = base.join(url) if base is not None and not url.is_absolute() else url
        requested(url.host, url.port, method, url.path)

    note = _never_raising(note)

    @functools.wraps(old)
    async def _request(self, method, url, **kwargs):
        note(self, method, url)
        return await old(self, method, url, **kwargs)

    session._request = _request


def _hide_frame(error):
    """Take our frame out of an exception, which a bare `raise` hands on."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


_HOOKS = {
    "socket": _wrap_socket,
    "http.client": _wrap_http,
    "httpcore": _wrap_httpcore,  # of httpx
    "httpcore2": _wrap_httpcore,
    "aiohttp": _wrap_aiohttp,
}
