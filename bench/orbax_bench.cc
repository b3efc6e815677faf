#include "bench/orbax_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "bench/paired.h"
#include "convert/maxtext.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "engine/base/thread_pool.h"

namespace tandem::bench {
namespace {

using convert::OrbaxCheckpoint;
using Leaf = OrbaxCheckpoint::Leaf;

double SecondsOf(const std::function<void()>& work) {
  const auto from = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

class OrbaxBench {
 public:
  explicit OrbaxBench(const OrbaxBenchOptions& options)
      : pool_(options.threads),
        checkpoint_(OrbaxCheckpoint::Open(options.path)),
        source_(convert::OpenMaxText(options.path, options.base, std::nullopt, "")) {
    for (const Leaf& leaf : checkpoint_.leaves()) {
      if (leaf.array && leaf.path.front() != "opt_state") leaves_.push_back(&leaf);
    }
    std::sort(leaves_.begin(), leaves_.end(),
              [](const Leaf* a, const Leaf* b) { return a->array->bytes() > b->array->bytes(); });
    parts_.resize(static_cast<size_t>(source_->parts()));
    std::iota(parts_.begin(), parts_.end(), 0);
    const auto bytes_of = [&](int64_t part) {
      size_t bytes = 0;
      for (const int64_t tensor : source_->TensorsOf(part)) {
        bytes += source_->tensors()[static_cast<size_t>(tensor)].view.bytes();
      }
      return bytes;
    };
    std::sort(parts_.begin(), parts_.end(),
              [&](int64_t a, int64_t b) { return bytes_of(a) > bytes_of(b); });
  }

  double Decompress() {
    return ForAll(leaves_.size(), [&](size_t i) { checkpoint_.Decompress(*leaves_[i]); });
  }
  double Read() {
    return ForAll(leaves_.size(), [&](size_t i) {
      std::vector<std::byte> bytes(static_cast<size_t>(leaves_[i]->array->bytes()));
      checkpoint_.Read(*leaves_[i], bytes);
    });
  }
  double Import() {
    return ForAll(parts_.size(),
                  [&](size_t i) { source_->ReadPart(parts_[i], [](const auto&, const auto&) {}); });
  }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Leaf* leaf : leaves_) bytes += leaf->array->bytes();
    return bytes;
  }
  int n_threads() const { return pool_.n_threads(); }

 private:
  // The largest first, each on the first worker that is free.
  double ForAll(size_t n, const std::function<void(size_t)>& task) {
    std::mutex mutex;  // guards fault
    std::exception_ptr fault;
    const double seconds = SecondsOf([&] {
      pool_.ParallelFor(static_cast<int64_t>(n), [&](int64_t i, int) {
        try {
          task(static_cast<size_t>(i));
        } catch (...) {
          const std::lock_guard lock(mutex);
          fault = std::current_exception();
        }
      });
    });
    if (fault != nullptr) std::rethrow_exception(fault);
    return seconds;
  }

  ThreadPool pool_;
  OrbaxCheckpoint checkpoint_;
  std::unique_ptr<convert::ModelSource> source_;
  std::vector<const Leaf*> leaves_;
  std::vector<int64_t> parts_;
};

}  // namespace

int RunOrbaxBench(std::ostream& out, const OrbaxBenchOptions& options) {
  OrbaxBench bench(options);
  const double mib = static_cast<double>(bench.bytes()) / (1 << 20);
  bench.Decompress();  // brings the files into memory
  std::vector<double> alone, read, import, read_ratios, import_ratios;
  for (int round = 0; round < options.rounds; ++round) {
    alone.push_back(bench.Decompress());
    read.push_back(bench.Read());
    import.push_back(bench.Import());
    read_ratios.push_back(alone.back() / read.back());
    import_ratios.push_back(alone.back() / import.back());
  }
  char line[256];
  std::snprintf(line, sizeof line,
                "%.0f MiB of arrays, %d threads; medians of %d rounds\n"
                "decompressed alone %7.0f MiB/s\n"
                "read as arrays     %7.0f MiB/s = %.2f of it\n"
                "imported           %7.0f MiB/s = %.2f of it\n",
                mib, bench.n_threads(), options.rounds, mib / Median(alone), mib / Median(read),
                Median(read_ratios), mib / Median(import), Median(import_ratios));
  out << line;
  return 0;
}

}  // namespace tandem::bench
