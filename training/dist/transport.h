#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tandem::training {

// Moves bytes between the ranks of a run; computes nothing. All ranks call the same functions in
// the same order. `bytes` is the size of one rank's part, at most kMostBytesPerCall. One thread
// uses a transport, except for Abort.
class Transport {
 public:
  // MPI counts are int. Callers split larger buffers.
  static constexpr int64_t kMostBytesPerCall = int64_t{1} << 26;

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Part k of `send` goes to rank k; part k of `receive` comes from rank k. Both have size() parts.
  virtual void AllToAll(const std::byte* send, std::byte* receive, int64_t bytes) = 0;
  // `receive` has size() parts, in rank order.
  virtual void AllGather(const std::byte* send, std::byte* receive, int64_t bytes) = 0;
  virtual void Broadcast(std::byte* data, int64_t bytes, int root) = 0;
  virtual void Barrier() = 0;
  // A transport among the ranks that pass the same color, in rank order. All ranks call it, at most
  // kMostSplits times. Only this transport is finished and aborted; it must outlive the result.
  static constexpr int kMostSplits = 8;
  virtual std::unique_ptr<Transport> Split(int color) = 0;
  // Ends the use on all ranks. Not called after a failure.
  virtual void Finish() = 0;
  // Makes calls in progress on all ranks throw, where that is possible. Any thread.
  virtual void Abort() = 0;
};

}  // namespace tandem::training
