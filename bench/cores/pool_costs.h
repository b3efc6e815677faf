#pragma once

namespace tandem::bench {

// Seconds that ThreadPool takes beside the tasks, measured with two threads.
struct PoolCosts {
  double barrier = 0;    // a region of two tasks over one of them, without the claims
  double claim = 0;      // each further empty task; both threads claim at once
  double wake_call = 0;  // the caller's part in waking a sleeping worker
  double wake = 0;       // from the end of that call to the worker's first task
};

// Medians, of the barrier the lower decile; takes about 0.2 s on a quiet machine.
PoolCosts MeasurePoolCosts();

}  // namespace tandem::bench
