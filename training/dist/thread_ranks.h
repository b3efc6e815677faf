#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "training/dist/transport.h"

namespace tandem::training {

// Ranks as threads of one process, for tests. Create one group and open a transport for each rank.
// The group must outlive the transports.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);

  std::unique_ptr<Transport> Open(int rank);

 private:
  class Rank;
  // Waits until all ranks have arrived. Throws kUnavailable after Abort.
  void Meet();
  void Abort();
  // The group of `size` ranks that passed `color` to the present Split.
  ThreadRanks& Part(int color, int size);

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const std::byte*> sent_;  // by rank, during an exchange
  std::vector<int> colors_;             // by rank, during a split
  std::map<std::pair<int64_t, int>, std::unique_ptr<ThreadRanks>> parts_;  // by round and color
  int waiting_ = 0;
  int64_t round_ = 0;
  bool aborted_ = false;
};

}  // namespace tandem::training
