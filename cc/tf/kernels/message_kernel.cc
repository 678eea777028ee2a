#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc/tf/kernels/message_hub.h"
#include "cc/tf/kernels/tensor_util.h"
#include "tensorflow/core/framework/cancellation.h"

namespace twml {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
constexpr int64_t kMagic = 0x31676d6c6d7774;  // "twmlmg1"
constexpr int64_t kMaxBytes = int64_t{1} << 36;
constexpr double kHandshakeSeconds = 30;
constexpr int kKeepAliveSeconds = 30;

struct Greeting {
  int64_t magic, secret, session;
};
struct Header {
  int64_t step, number, bytes;
};

absl::Status Lost(const char* what) {
  return absl::UnavailableError(absl::StrCat("the connection for messages ", what));
}

absl::Status NotAwaited() {
  return absl::CancelledError("the step that waits for a message was cancelled");
}

bool ReadAll(int descriptor, void* to, int64_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = recv(descriptor, at, bytes, MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

bool WriteAll(int descriptor, iovec* parts, int count) {
  while (count > 0) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n = sendmsg(descriptor, &message, kNoSignal);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    while (count > 0 && n >= static_cast<ssize_t>(parts->iov_len)) {
      n -= parts->iov_len;
      ++parts;
      --count;
    }
    if (count > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + n;
      parts->iov_len -= n;
    }
  }
  return true;
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
  if (!ReadAll(descriptor, &greeting, sizeof greeting) || greeting.magic != kMagic ||
      greeting.secret != secret_) {
    return;
  }
  Open(greeting.session, peer);
  iovec answer{&greeting.session, sizeof greeting.session};
  SetTimeout(descriptor, 0);
  if (WriteAll(descriptor, &answer, 1)) Read(greeting.session, peer);
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
  iovec part{&greeting, sizeof greeting};
  int64_t answer = 0;
  if (!connected || !WriteAll(descriptor, &part, 1) ||
      !ReadAll(descriptor, &answer, sizeof answer) || answer != session) {
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
  while (ReadAll(socket->descriptor, &header, sizeof header)) {
    if (header.bytes < 0 || header.bytes > kMaxBytes) return;
    Tensor bytes(tensorflow::DT_UINT8, TensorShape({header.bytes}));
    if (!bytes.IsInitialized()) return;
    if (!ReadAll(socket->descriptor, bytes.data(), header.bytes)) return;
    Deliver({session, header.step, header.number}, std::move(bytes));
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

void MessageHub::Deliver(const MessageKey& key, Tensor bytes) {
  Done done;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = waiting_.find(key);
    if (waiting == waiting_.end()) {
      arrived_[key].push_back(std::move(bytes));
      return;
    }
    done = std::move(waiting->second);
    waiting_.erase(waiting);
  }
  done(absl::OkStatus(), std::move(bytes));
}

absl::Status MessageHub::Send(const MessageKey& key, const Tensor& bytes) {
  std::shared_ptr<Socket> socket;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto session = sessions_.find(key.session);
    if (session == sessions_.end()) return Lost("has ended");
    socket = session->second;
  }
  if (socket == nullptr) {
    Deliver(key, bytes);
    return absl::OkStatus();
  }
  Header header{key.step, key.number, static_cast<int64_t>(bytes.TotalBytes())};
  iovec parts[] = {{&header, sizeof header}, {bytes.data(), bytes.TotalBytes()}};
  const std::lock_guard<std::mutex> lock(socket->sending);
  return WriteAll(socket->descriptor, parts, 2) ? absl::OkStatus() : Lost("has ended");
}

void MessageHub::Receive(const MessageKey& key, const std::function<bool()>& wait, Done done) {
  Tensor bytes;
  absl::Status status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto arrived = arrived_.find(key);
    if (arrived != arrived_.end()) {
      bytes = std::move(arrived->second.front());
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
  done(status, std::move(bytes));
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

namespace {

class MessagePortOp : public Kernel {
 public:
  using Kernel::Kernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "address", {2}, &out));
    return MessageHub::OfProcess().Listen(&out->vec<int64_t>()(0), &out->vec<int64_t>()(1));
  }
};

class ConnectMessagesOp : public Kernel {
 public:
  explicit ConnectMessagesOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("host", &host_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("session", &session_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seconds", &seconds_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& address = ctx->input(0);
    if (address.dims() != 1 || address.NumElements() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("address must have shape [2], got ", address.shape().DebugString()));
    }
    const auto at = address.vec<int64_t>();
    return MessageHub::OfProcess().Connect(host_, at(0), at(1), session_, seconds_);
  }

  std::string host_;
  int64_t session_;
  float seconds_;
};

class SendMessageOp : public Kernel {
 public:
  explicit SendMessageOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("session", &session_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& message = ctx->input(1);
    Tensor bytes;
    TF_RETURN_IF_ERROR(bytes.BitcastFrom(
        message, tensorflow::DT_UINT8, TensorShape({static_cast<int64_t>(message.TotalBytes())})));
    return MessageHub::OfProcess().Send({session_, ctx->step_id(), number_}, bytes);
  }

  int64_t session_, number_;
};

class ReceiveMessageOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ReceiveMessageOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("session", &session_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    MessageHub& hub = MessageHub::OfProcess();
    const MessageKey key{session_, ctx->step_id(), number_};
    auto* cancellation = ctx->cancellation_manager();
    const auto token = cancellation == nullptr ? tensorflow::CancellationManager::kInvalidToken
                                               : cancellation->get_cancellation_token();
    const auto wait = [&hub, &key, cancellation, token] {
      return cancellation == nullptr ||
             cancellation->RegisterCallback(token, [&hub, key] { hub.Cancel(key); });
    };
    hub.Receive(key, wait,
                [this, ctx, cancellation, token, done = std::move(done)](const absl::Status& status,
                                                                         const Tensor& bytes) {
                  if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
                  ctx->SetStatus(status.ok() ? SetOutput(ctx, bytes) : status);
                  done();
                });
  }

 private:
  absl::Status SetOutput(OpKernelContext* ctx, const Tensor& bytes) {
    const int64_t size = tensorflow::DataTypeSize(type_);
    if (bytes.NumElements() % size != 0) {
      return absl::InternalError(
          absl::StrCat("a message of ", bytes.NumElements(), " bytes has no whole elements"));
    }
    Tensor message;
    TF_RETURN_IF_ERROR(
        message.BitcastFrom(bytes, type_, TensorShape({bytes.NumElements() / size})));
    ctx->set_output(0, message);
    return absl::OkStatus();
  }

  int64_t session_, number_;
  tensorflow::DataType type_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>MessagePort").Device(DEVICE_CPU), MessagePortOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ConnectMessages").Device(DEVICE_CPU), ConnectMessagesOp);
REGISTER_KERNEL_BUILDER(Name("Twml>SendMessage").Device(DEVICE_CPU), SendMessageOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ReceiveMessage").Device(DEVICE_CPU), ReceiveMessageOp);

}  // namespace
}  // namespace twml
