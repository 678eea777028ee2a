#include "cc/tf/kernels/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace twml {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
constexpr int kMaxBuffers = 512;  // of a system call; Linux has 1024
// A peer that does not answer is lost after a minute, whether it is to send or to receive.
constexpr int kKeepAliveSeconds = 30, kProbeSeconds = 10, kProbes = 3;
constexpr int kUnansweredMilliseconds = 60000;

// Calls transfer(descriptor, message, flags) until it has read or written all buffers.
template <class Transfer>
bool TransferAll(Transfer transfer, int descriptor, int flags, std::vector<iovec> buffers) {
  iovec* at = buffers.data();
  iovec* const end = at + buffers.size();
  while (true) {
    while (at != end && at->iov_len == 0) ++at;
    if (at == end) return true;
    msghdr message{};
    message.msg_iov = at;
    message.msg_iovlen = std::min<int64_t>(end - at, kMaxBuffers);
    ssize_t n = transfer(descriptor, &message, flags);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    for (; at != end && n >= static_cast<ssize_t>(at->iov_len); ++at) n -= at->iov_len;
    if (n == 0) continue;
    at->iov_base = static_cast<char*>(at->iov_base) + n;
    at->iov_len -= n;
  }
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool IsNumber(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 || host.find(':') != std::string::npos;
}

// A socket that listens on a free port of an address; -1 if it is not one of this machine.
int ListenAt(const sockaddr* address, socklen_t size) {
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int listener = socket(address->sa_family, type, 0);
  if (listener < 0) return -1;
  if (bind(listener, address, size) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
  const int error = errno;
  close(listener);
  errno = error;
  return -1;
}

}  // namespace

bool ReadAll(int descriptor, std::vector<iovec> buffers) {
  return TransferAll(recvmsg, descriptor, MSG_WAITALL, std::move(buffers));
}

bool WriteAll(int descriptor, std::vector<iovec> buffers) {
  return TransferAll(sendmsg, descriptor, kNoSignal, std::move(buffers));
}

void SetTimeout(int descriptor, double seconds) {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec = static_cast<suseconds_t>((seconds - limit.tv_sec) * 1e6);
  if (seconds > 0 && limit.tv_sec == 0 && limit.tv_usec == 0) limit.tv_usec = 1;  // 0: no limit
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void SetOptions(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveSeconds, sizeof kKeepAliveSeconds);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof kProbeSeconds);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
#endif
#ifdef TCP_USER_TIMEOUT  // for what was sent, which keeps the probes from being sent
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnansweredMilliseconds,
             sizeof kUnansweredMilliseconds);
#endif
}

Addresses Resolve(std::string host, int64_t port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) {
      return {found, freeaddrinfo};
    }
  }
  return {nullptr, freeaddrinfo};
}

int ListenOn(const std::string& host) {
  const Addresses found = Resolve(host, 0);
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    // Some systems give the loopback as the address of their own name, which others cannot reach.
    if (IsLoopback(a->ai_addr) && host != "localhost" && !IsNumber(host)) continue;
    const int listener = ListenAt(a->ai_addr, a->ai_addrlen);
    if (listener >= 0) return listener;
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = INADDR_ANY;
  return ListenAt(reinterpret_cast<sockaddr*>(&any), sizeof any);
}

int64_t PortOf(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                            : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
}

}  // namespace twml
