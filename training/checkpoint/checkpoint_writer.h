#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::training {

// What a checkpoint will hold, with bytes of its own: the run may go on.
struct CheckpointSnapshot {
  CheckpointContents contents;
  std::vector<std::vector<std::byte>> bytes;  // of tensors that were copies from the start
  std::vector<AlignedBuffer> copies;          // of the others
};

// Copies the tensors of this file, which belong to somebody else. False when memory does not
// suffice for all of them: the others are still somebody else's.
bool CopyTensors(CheckpointContents::TensorFile& file, std::vector<AlignedBuffer>* copies);

// Saves in a thread of its own, one checkpoint at a time. Used by one thread, which takes the
// result of every save before it starts another; while a save is in flight nobody else may use the
// store.
class CheckpointWriter {
 public:
  struct Result {
    int64_t step = 0;
    std::filesystem::path dir;   // of the checkpoint, unless it failed
    std::exception_ptr failure;  // what CheckpointStore::Save threw
  };

  explicit CheckpointWriter(CheckpointStore& store) : store_(store) {}
  ~CheckpointWriter();  // waits for the save in flight
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void Start(CheckpointSnapshot snapshot);
  bool in_flight() const { return thread_.joinable(); }

  // The result of the save in flight; nothing when there is none, or, unless told to wait, while
  // it is not done.
  std::optional<Result> Take(bool wait);

 private:
  CheckpointStore& store_;
  Result result_;  // the thread's until it has ended
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace tandem::training
