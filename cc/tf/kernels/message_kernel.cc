#include <utility>

#include "cc/tf/kernels/message_hub.h"
#include "cc/tf/kernels/tensor_util.h"
#include "tensorflow/core/framework/cancellation.h"

namespace twml {
namespace {

class MessagePortOp : public Kernel {
 public:
  explicit MessagePortOp(OpKernelConstruction* ctx) : Kernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("host", &host_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, "address", {2}, &out));
    auto at = out->vec<int64_t>();
    return MessageHub::OfProcess().Listen(host_, &at(0), &at(1));
  }

  std::string host_;
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

  // Copying a message to the system takes less time than waking another thread that does it.
  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    if (ctx->num_inputs() > kMaxParts) {
      return absl::InvalidArgumentError(absl::StrCat("message must have at most ", kMaxParts,
                                                     " tensors, got ", ctx->num_inputs() - 1));
    }
    Message message(ctx->num_inputs() - 1);
    for (int i = 0; i < static_cast<int>(message.size()); ++i) {
      const Tensor& part = ctx->input(i + 1);
      TF_RETURN_IF_ERROR(message[i].BitcastFrom(
          part, tensorflow::DT_UINT8, TensorShape({static_cast<int64_t>(part.TotalBytes())})));
    }
    return MessageHub::OfProcess().Send({session_, ctx->step_id(), number_}, message);
  }

  int64_t session_, number_;
};

class ReceiveMessageOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ReceiveMessageOp(OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("session", &session_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &types_));
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
                                                                         const Message& message) {
                  if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
                  ctx->SetStatus(status.ok() ? SetOutputs(ctx, message) : status);
                  done();
                });
  }

 private:
  absl::Status SetOutputs(OpKernelContext* ctx, const Message& message) {
    if (message.size() != types_.size()) {
      return absl::InternalError(
          absl::StrCat("a message has ", message.size(), " tensors, expected ", types_.size()));
    }
    for (int i = 0; i < static_cast<int>(types_.size()); ++i) {
      const int64_t bytes = message[i].NumElements(), size = tensorflow::DataTypeSize(types_[i]);
      if (bytes % size != 0) {
        return absl::InternalError(
            absl::StrCat("a part of a message has ", bytes, " bytes, no whole elements"));
      }
      Tensor part;
      TF_RETURN_IF_ERROR(part.BitcastFrom(message[i], types_[i], TensorShape({bytes / size})));
      ctx->set_output(i, part);
    }
    return absl::OkStatus();
  }

  int64_t session_, number_;
  tensorflow::DataTypeVector types_;
};

REGISTER_KERNEL_BUILDER(Name("Twml>MessagePort").Device(DEVICE_CPU), MessagePortOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ConnectMessages").Device(DEVICE_CPU), ConnectMessagesOp);
REGISTER_KERNEL_BUILDER(Name("Twml>SendMessage").Device(DEVICE_CPU), SendMessageOp);
REGISTER_KERNEL_BUILDER(Name("Twml>ReceiveMessage").Device(DEVICE_CPU), ReceiveMessageOp);

}  // namespace
}  // namespace twml
