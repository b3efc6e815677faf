#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "training/dist/transport.h"

namespace tandem::training {

// What the ranks of a run do together. All ranks call the same functions in the same order and with
// the same sizes. Sizes are int64 and may exceed 2^31.
//
// Sums add the ranks' values in a fixed binary tree: neighbours first, then pairs of neighbours,
// and so on. The result has the same bits on all ranks, at every run, however the data are split.
//
// One communication thread makes all calls of the transport, in order. The owner's thread calls the
// functions below, which wait, and Start functions, which do not.
class Collectives {
 public:
  using OpenTransport = std::function<std::unique_ptr<Transport>()>;
  struct Options {
    // Longest wait for the other ranks; 0: no limit.
    double timeout_s = 0;
    // Called when it has passed. Must not return where a call cannot be interrupted.
    std::function<void(const std::string& what)> on_timeout = {};
  };

  // Calls `open` in the communication thread; throws what it throws.
  Collectives(const OpenTransport& open, Options options);
  // Aborts the transport unless Finish has run.
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_first() const { return rank_ == 0; }

  // Every element becomes the sum of the ranks' elements.
  void AllReduce(std::span<float> data);
  // `data` has size() equal parts. Part rank() becomes the sum; the others become unspecified.
  void ReduceScatter(std::span<float> data);
  // `all` has size() parts of the size of `mine`, in rank order.
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all);
  std::vector<double> AllGather(std::span<const double> mine);
  std::vector<std::string> AllGatherText(const std::string& mine);
  void Broadcast(std::span<std::byte> data, int root);
  // All ranks get the text of rank `root`.
  std::string BroadcastText(const std::string& text, int root);
  bool AnyRank(bool mine);
  void Barrier();

  // Begins an operation on `data`, which nobody may touch before Wait.
  void StartAllReduce(std::span<float> data);
  void StartReduceScatter(std::span<float> data);
  // Waits for everything started. Throws its first fault, after the rest has ended.
  void Wait();
  // Like Wait after a fault of this rank: ignores faults, and makes the others fail where that is
  // possible.
  void Abandon();

  // Ends the use on all ranks.
  void Finish();

 private:
  struct Call {
    const char* what;
    std::packaged_task<void()> run;
  };
  void Start(const char* what, std::function<void()> run);
  void Do(const char* what, std::function<void()> run);
  void Serve();
  void WaitFor(const char* what, std::future<void>* done);
  void SumParts(std::byte* received, int64_t elements) const;
  void AllReduceNow(std::span<float> data);
  void ReduceScatterNow(std::span<float> data);

  const Options options_;
  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<Transport> transport_;  // of the communication thread
  AlignedBuffer staging_, received_;      // of the communication thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Call> queue_;
  bool closing_ = false;

  std::vector<std::pair<const char*, std::future<void>>> started_;  // of the owner's thread
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace tandem::training
