#include "training/checkpoint/checkpoint_writer.h"

#include <cstring>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem::training {

bool CopyTensors(CheckpointContents::TensorFile& file, std::vector<AlignedBuffer>* copies) {
  for (engine::NamedTensor& tensor : file.tensors) {
    AlignedBuffer copy;
    if (ErrorOf({ErrorCode::kUnavailable}, [&] { copy = AlignedBuffer(tensor.view.bytes()); })) {
      return false;
    }
    if (copy.size() > 0) std::memcpy(copy.data(), tensor.view.data, copy.size());
    tensor.view.data = copy.data();
    copies->push_back(std::move(copy));
  }
  return true;
}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::Start(CheckpointSnapshot snapshot) {
  TANDEM_CHECK(!in_flight());
  done_ = false;
  thread_ = std::thread([this, taken = std::move(snapshot)]() mutable {
    result_ = {taken.contents.step, {}, nullptr};
    result_.failure = FaultOf([&] { result_.dir = store_.Save(taken.contents); });
    taken = {};  // frees its memory before done_ is visible
    done_ = true;
  });
}

std::optional<CheckpointWriter::Result> CheckpointWriter::Take(bool wait) {
  if (!in_flight() || (!wait && !done_)) return std::nullopt;
  thread_.join();
  return std::exchange(result_, {});
}

}  // namespace tandem::training
