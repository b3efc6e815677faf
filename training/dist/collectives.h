#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
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

  // Ranks that do something together. Before Arrange every group is all ranks.
  // - kTensor: `tensor` consecutive ranks, which share each matrix and compute the same rows;
  // - kFsdp: `fsdp` ranks with the same part of matrices, which share the parameters of a replica;
  // - kData: the ranks with the same part of the parameters, one of each replica;
  // - kRows: the ranks with the same part of matrices, which share the rows of a step: kFsdp times
  //   kData, in the order of their rows.
  enum class Group { kAll, kFsdp, kData, kTensor, kRows };
  // Forms the groups; fsdp times tensor divides size(). All ranks call it, once.
  void Arrange(int fsdp, int tensor = 1);
  int size_of(Group group) const { return places_[static_cast<size_t>(group)].size; }
  int rank_in(Group group) const { return places_[static_cast<size_t>(group)].rank; }

  // Every element becomes the sum of the ranks' elements.
  void AllReduce(std::span<float> data, Group group = Group::kAll);
  // `data` has one equal part per rank of the group. The rank's own part becomes the sum; the
  // others become unspecified.
  void ReduceScatter(std::span<float> data, Group group = Group::kAll);
  // `all` has size() parts of the size of `mine`, in rank order.
  void AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Group group = Group::kAll);
  std::vector<double> AllGather(std::span<const double> mine, Group group = Group::kAll);
  std::vector<std::string> AllGatherText(const std::string& mine);
  void Broadcast(std::span<std::byte> data, int root);
  // All ranks get the text of rank `root`.
  std::string BroadcastText(const std::string& text, int root);
  bool AnyRank(bool mine);
  void Barrier();

  // The number of an operation, in the order of their starts.
  using Ticket = uint64_t;
  // Begins an operation on `data`, which nobody may touch before Wait. `then` runs after it, in the
  // communication thread.
  Ticket StartAllReduce(std::span<float> data, Group group = Group::kAll);
  Ticket StartReduceScatter(std::span<float> data, Group group = Group::kAll,
                            std::function<void()> then = {});
  // `all` has one part per rank of the group, in rank order. Only the rank's own part is given;
  // the operation fills the others.
  Ticket StartFillFromAll(std::span<std::byte> all, Group group);
  // Waits for everything started. Throws its first fault, after the rest has ended.
  void Wait();
  // The same for this operation and all that started before it.
  void WaitFor(Ticket ticket);
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
  struct Place {
    int rank = 0;
    int size = 1;
  };
  Ticket Start(const char* what, std::function<void()> run);
  void Do(const char* what, std::function<void()> run);
  void Serve();
  void WaitForOne(const char* what, std::future<void>* done);
  // Of the communication thread.
  Transport& Of(Group group);
  void AllReduceNow(std::span<float> data, Transport& transport);
  void ReduceScatterNow(std::span<float> data, Transport& transport);
  // `mine` may be the rank's part of `all`.
  void AllGatherNow(std::span<const std::byte> mine, std::span<std::byte> all,
                    Transport& transport);

  const Options options_;
  int rank_ = 0;
  int size_ = 1;
  static constexpr size_t kGroups = static_cast<size_t>(Group::kRows) + 1;
  std::array<Place, kGroups> places_;                       // by group
  std::unique_ptr<Transport> transport_;                    // of the communication thread
  std::array<std::unique_ptr<Transport>, kGroups> groups_;  // likewise; null: all ranks
  AlignedBuffer staging_, received_;                        // of the communication thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Call> queue_;
  bool closing_ = false;

  // Of the owner's thread: the operations from number first_started_ on.
  std::deque<std::pair<const char*, std::future<void>>> started_;
  Ticket first_started_ = 0;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace tandem::training
