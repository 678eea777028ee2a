#include "cc/tf/kernels/message_hub.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace twml {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
constexpr int64_t kMagic = 0x31676d6c6d7774;     // "twmlmg1"
constexpr int64_t kMaxBytes = int64_t{1} << 36;  // of a part
constexpr int kMaxBuffers = 512;                 // of a system call; Linux has 1024
constexpr double kHandshakeSeconds = 30;
constexpr int kKeepAliveSeconds = 30;

struct Greeting {
  int64_t magic, secret, session;
};
struct Header {
  int64_t step, number, parts;  // followed by the number of bytes of each part
};

absl::Status Lost(const char* what) {
  return absl::UnavailableError(absl::StrCat("the connection for messages ", what));
}

absl::Status NotAwaited() {
  return absl::CancelledError("the step that waits for a message was cancelled");
}

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

bool ReadAll(int descriptor, std::vector<iovec> buffers) {
  return TransferAll(recvmsg, descriptor, MSG_WAITALL, std::move(buffers));
}

bool WriteAll(int descriptor, std::vector<iovec> buffers) {
  return TransferAll(sendmsg, descriptor, kNoSignal, std::move(buffers));
}

template <class T>
iovec BufferOf(T* value) {
  return {value, sizeof(T)};
}

void AddBuffers(const Message& message, std::vector<iovec>* buffers) {
  for (const Tensor& part : message) buffers->push_back({part.data(), part.TotalBytes()});
}

void SetTimeout(int descriptor, double seconds) {
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_usec = static_cast<suseconds_t>((seconds - limit.tv_sec) * 1e6);
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Small messages are sent at once, and a peer whose network is cut is noticed.
void SetOptions(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveSeconds, sizeof kKeepAliveSeconds);
#endif
}

}  // namespace

MessageHub::Socket::~Socket() { close(descriptor); }

MessageHub& MessageHub::OfProcess() {
  static auto* hub = new MessageHub;
  return *hub;
}

absl::Status MessageHub::Listen(int64_t* port, int64_t* secret) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (port_ == 0) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = INADDR_ANY;
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (listener < 0 || bind(listener, any, size) != 0 || listen(listener, SOMAXCONN) != 0 ||
        getsockname(listener, any, &size) != 0) {
      if (listener >= 0) close(listener);
      return absl::UnavailableError(absl::StrCat("no port for messages: ", std::strerror(errno)));
    }
    std::random_device random;
    secret_ = static_cast<int64_t>(uint64_t{random()} << 32 | random());
    port_ = ntohs(address.sin_port);
    std::thread([this, listener] { Accept(listener); }).detach();
  }
  *port = port_;
  *secret = secret_;
  return absl::OkStatus();
}

void MessageHub::Accept(int listener) {
  while (true) {
    const int descriptor = accept(listener, nullptr, nullptr);
    if (descriptor >= 0) {
      std::thread([this, descriptor] { Serve(descriptor); }).detach();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      usleep(10000);  // no descriptors are left
    }
  }
}

void MessageHub::Serve(int descriptor) {
  auto peer = std::make_shared<Socket>(descriptor);
  SetOptions(descriptor);
  SetTimeout(descriptor, kHandshakeSeconds);
  Greeting greeting{};
  if (!ReadAll(descriptor, {BufferOf(&greeting)}) || greeting.magic != kMagic ||
      greeting.secret != secret_) {
    return;
  }
  Open(greeting.session, peer);
  SetTimeout(descriptor, 0);
  if (WriteAll(descriptor, {BufferOf(&greeting.session)})) Read(greeting.session, peer);
  Close(greeting.session);
}

absl::Status MessageHub::Connect(const std::string& host, int64_t port, int64_t secret,
                                 int64_t session, double seconds) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (port_ != 0 && port_ == port && secret_ == secret) {
      sessions_[session] = nullptr;
      return absl::OkStatus();
    }
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return absl::UnavailableError(absl::StrCat("no address of the host ", host));
  }
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor >= 0) SetTimeout(descriptor, seconds);
  const bool connected =
      descriptor >= 0 && connect(descriptor, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (descriptor < 0) return Lost("has no socket");
  auto peer = std::make_shared<Socket>(descriptor);
  Greeting greeting{kMagic, secret, session};
  int64_t answer = 0;
  if (!connected || !WriteAll(descriptor, {BufferOf(&greeting)}) ||
      !ReadAll(descriptor, {BufferOf(&answer)}) || answer != session) {
    return absl::UnavailableError(absl::StrCat("no connection for messages to ", host, ":", port));
  }
  SetOptions(descriptor);
  SetTimeout(descriptor, 0);
  Open(session, peer);
  std::thread([this, session, peer] {
    Read(session, peer);
    Close(session);
  }).detach();
  return absl::OkStatus();
}

void MessageHub::Open(int64_t session, std::shared_ptr<Socket> socket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sessions_[session] = std::move(socket);
}

void MessageHub::Read(int64_t session, const std::shared_ptr<Socket>& socket) {
  Header header{};
  std::vector<int64_t> sizes;
  while (ReadAll(socket->descriptor, {BufferOf(&header)})) {
    if (header.parts < 0 || header.parts > kMaxParts) return;
    sizes.resize(header.parts);
    const auto bytes = static_cast<size_t>(header.parts) * sizeof(int64_t);
    if (!ReadAll(socket->descriptor, {{sizes.data(), bytes}})) return;
    Message message;
    for (const int64_t size : sizes) {
      if (size < 0 || size > kMaxBytes) return;
      message.emplace_back(tensorflow::DT_UINT8, TensorShape({size}));
      if (!message.back().IsInitialized()) return;
    }
    std::vector<iovec> buffers;
    AddBuffers(message, &buffers);
    if (!ReadAll(socket->descriptor, std::move(buffers))) return;
    Deliver({session, header.step, header.number}, std::move(message));
  }
}

void MessageHub::Close(int64_t session) {
  std::vector<Done> failed;
  const MessageKey first{session, INT64_MIN, INT64_MIN};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sessions_.erase(session);
    auto arrived = arrived_.lower_bound(first);
    while (arrived != arrived_.end() && arrived->first.session == session) {
      arrived = arrived_.erase(arrived);
    }
    auto waiting = waiting_.lower_bound(first);
    while (waiting != waiting_.end() && waiting->first.session == session) {
      failed.push_back(std::move(waiting->second));
      waiting = waiting_.erase(waiting);
    }
  }
  for (const Done& done : failed) done(Lost("has ended"), {});
}

void MessageHub::Deliver(const MessageKey& key, Message message) {
  Done done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) {
      arrived_[key].push_back(std::move(message));
      return;
    }
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  done(absl::OkStatus(), std::move(message));
}

absl::Status MessageHub::Send(const MessageKey& key, const Message& message) {
  std::shared_ptr<Socket> socket;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto session = sessions_.find(key.session);
    if (session == sessions_.end()) return Lost("has ended");
    socket = session->second;
  }
  if (socket == nullptr) {
    Deliver(key, message);
    return absl::OkStatus();
  }
  Header header{key.step, key.number, static_cast<int64_t>(message.size())};
  std::vector<int64_t> sizes;
  for (const Tensor& part : message) sizes.push_back(static_cast<int64_t>(part.TotalBytes()));
  std::vector<iovec> buffers{BufferOf(&header), {sizes.data(), sizes.size() * sizeof(int64_t)}};
  AddBuffers(message, &buffers);
  const std::lock_guard<std::mutex> lock(socket->sending);
  return WriteAll(socket->descriptor, std::move(buffers)) ? absl::OkStatus() : Lost("has ended");
}

void MessageHub::Receive(const MessageKey& key, const std::function<bool()>& wait, Done done) {
  Message message;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto arrived = arrived_.find(key);
    if (arrived != arrived_.end()) {
      message = std::move(arrived->second.front());
      arrived->second.pop_front();
      if (arrived->second.empty()) arrived_.erase(arrived);
    } else if (sessions_.count(key.session) == 0) {
      status = Lost("has ended");
    } else if (waiting_.count(key) != 0) {
      status = absl::InternalError("two ops wait for the same message");
    } else if (!wait()) {
      status = NotAwaited();
    } else {
      waiting_[key] = std::move(done);
      return;
    }
  }
  done(status, std::move(message));
}

void MessageHub::Cancel(const MessageKey& key) {
  Done done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) return;
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  done(NotAwaited(), {});
}

}  // namespace twml
