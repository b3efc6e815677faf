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

// The contents of a checkpoint with their own bytes, so that training can continue.
struct CheckpointSnapshot {
  CheckpointContents contents;
  std::vector<std::vector<std::byte>> bytes;  // of tensors that were copies already
  std::vector<AlignedBuffer> copies;          // of the other tensors
};

// Copies the borrowed tensors of this file. Returns false when memory does not suffice for all; the
// remaining views stay borrowed.
bool CopyTensors(CheckpointContents::TensorFile& file, std::vector<AlignedBuffer>* copies);

// Saves in its own thread, one checkpoint at a time. One thread uses it and takes each result
// before it starts the next save. Nothing else may use the store while a save is in flight.
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

  // The result of the save in flight. Absent when no save is in flight, or when it is not done and
  // `wait` is false.
  std::optional<Result> Take(bool wait);

 private:
  CheckpointStore& store_;
  Result result_;  // the thread owns it until it ends
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace tandem::training
