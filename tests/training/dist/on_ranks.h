#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "engine/base/attempt.h"
#include "training/dist/collectives.h"
#include "training/dist/thread_ranks.h"

namespace tandem::training {

// Calls `work` on `size` ranks, each in a thread of its own. Returns the fault of each rank, null
// where it returned.
inline std::vector<std::exception_ptr> OnRanks(int size,
                                               const std::function<void(Collectives&)>& work,
                                               double timeout_s = 60) {
  ThreadRanks group(size);
  std::vector<std::exception_ptr> faults(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      faults[static_cast<size_t>(rank)] = FaultOf([&] {
        Collectives ranks([&] { return group.Open(rank); }, {.timeout_s = timeout_s});
        work(ranks);
        ranks.Finish();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return faults;
}

// As OnRanks; rethrows the first fault.
inline void MustWorkOnRanks(int size, const std::function<void(Collectives&)>& work) {
  for (const std::exception_ptr& fault : OnRanks(size, work)) {
    if (fault) std::rethrow_exception(fault);
  }
}

}  // namespace tandem::training
