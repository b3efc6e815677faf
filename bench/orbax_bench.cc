#include "bench/orbax_bench.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bench/measure/paired.h"
#include "convert/formats/maxtext/maxtext.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/orbax/orbax_writer.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_group.h"
#include "engine/base/thread_pool.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;
using convert::OrbaxCheckpoint;
using Leaf = OrbaxCheckpoint::Leaf;

// Selects arrays of parameters; optimizer states are not imported.
bool IsMeasured(const Leaf& leaf) { return leaf.array && leaf.path.front() != "opt_state"; }

// Returns the directory with the steps of an item.
fs::path RootOf(const OrbaxCheckpoint& checkpoint) {
  return fs::absolute(checkpoint.item_dir()).lexically_normal().parent_path().parent_path();
}

// Opens `exact/`, which the checkpoint of an f32 model may have.
std::optional<OrbaxCheckpoint> OpenExact(const OrbaxCheckpoint& checkpoint) {
  const fs::path exact = RootOf(checkpoint) / "exact" / "items";
  if (!OrbaxCheckpoint::Is(exact)) return std::nullopt;
  return OrbaxCheckpoint::Open(exact);
}

// A copy of the checkpoint, next to it, with chunks of at most so many bytes. The destructor
// removes it.
class Rechunked {
 public:
  Rechunked(const fs::path& path, int64_t max_chunk_bytes) {
    const OrbaxCheckpoint checkpoint = OrbaxCheckpoint::Open(path);
    const fs::path root = RootOf(checkpoint);
    dir_ = root.string() + ".rechunked-" + std::to_string(getpid());
    fs::create_directory(dir_);
    for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
      if (entry.is_regular_file()) fs::copy_file(entry.path(), dir_ / entry.path().filename());
    }
    Copy(checkpoint, dir_ / "0", max_chunk_bytes);
    if (const auto exact = OpenExact(checkpoint)) Copy(*exact, dir_ / "exact", max_chunk_bytes);
  }
  ~Rechunked() {
    std::error_code refused;
    fs::remove_all(dir_, refused);
  }
  Rechunked(const Rechunked&) = delete;
  Rechunked& operator=(const Rechunked&) = delete;

  const fs::path& dir() const { return dir_; }

 private:
  static void Copy(const OrbaxCheckpoint& from, const fs::path& step, int64_t max_chunk_bytes) {
    ThreadPool pool(0);
    convert::OrbaxStorage storage;
    storage.max_chunk_bytes = max_chunk_bytes;
    convert::OrbaxItemWriter writer(step / "items", storage, pool);
    for (const Leaf& leaf : from.leaves()) {
      if (!IsMeasured(leaf) || !leaf.array->dtype) continue;
      AlignedBuffer bytes(static_cast<size_t>(leaf.array->bytes()));
      from.Read(leaf, bytes.span());
      writer.AddArray(leaf.path, *leaf.array->dtype, leaf.array->shape, bytes.span());
    }
    writer.Finish();
    convert::WriteOrbaxStep(step, "{}", storage.stamp.time_ns);
  }

  fs::path dir_;
};

class OrbaxBench {
 public:
  OrbaxBench(const fs::path& path, const OrbaxBenchOptions& options)
      : n_threads_(options.threads > 0 ? options.threads : UsableCores()),
        checkpoint_(OrbaxCheckpoint::Open(path)),
        exact_(OpenExact(checkpoint_)),
        source_(convert::OpenMaxText(path, options.base, options.dtype, "")) {
    Add(checkpoint_);
    n_leaves_ = arrays_.size();
    if (exact_) Add(*exact_);
  }

  // Decompresses every chunk that the import reads.
  double Decompress() const {
    return ForArrays(arrays_.size(), [](const Array& array, const ParallelFor& parallel_for) {
      array.checkpoint->Decompress(*array.leaf, parallel_for);
    });
  }
  double Read() const {
    return ForArrays(n_leaves_, [](const Array& array, const ParallelFor& parallel_for) {
      AlignedBuffer bytes(static_cast<size_t>(array.leaf->array->bytes()));
      array.checkpoint->Read(*array.leaf, bytes.span(), parallel_for);
    });
  }
  // Imports like the writers of files.
  double Import() const {
    std::vector<int64_t> parts(static_cast<size_t>(source_->parts()));
    std::iota(parts.begin(), parts.end(), 0);
    BudgetedQueue queue(parts, [&](int64_t part) { return source_->PartMemory(part); });
    return OnAllThreads([&](ThreadGroup& group) {
      queue.Drain(group, [&](int64_t part, const ParallelFor& parallel_for) {
        source_->ReadPieces(part, parallel_for, [](const auto&, int64_t, const auto&) {});
      });
    });
  }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (size_t i = 0; i < n_leaves_; ++i) bytes += arrays_[i].leaf->array->bytes();
    return bytes;
  }
  int n_threads() const { return n_threads_; }

 private:
  struct Array {
    const OrbaxCheckpoint* checkpoint;
    const Leaf* leaf;
  };

  // Adds the arrays, largest first.
  void Add(const OrbaxCheckpoint& checkpoint) {
    const auto first = static_cast<std::ptrdiff_t>(arrays_.size());
    for (const Leaf& leaf : checkpoint.leaves()) {
      if (IsMeasured(leaf)) arrays_.push_back({&checkpoint, &leaf});
    }
    std::sort(arrays_.begin() + first, arrays_.end(), [](const Array& a, const Array& b) {
      return a.leaf->array->bytes() > b.leaf->array->bytes();
    });
  }

  // Returns seconds.
  double OnAllThreads(const std::function<void(ThreadGroup& group)>& work) const {
    const auto from = std::chrono::steady_clock::now();
    ThreadGroup group;
    for (int i = 0; i < n_threads_; ++i) group.Add([&] { work(group); });
    group.Wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  }

  // Returns the seconds for the first n arrays; a thread without an array helps with chunks of
  // others.
  double ForArrays(size_t n,
                   const std::function<void(const Array&, const ParallelFor&)>& task) const {
    std::atomic<size_t> next{0};
    std::atomic<size_t> done{0};
    return OnAllThreads([&](ThreadGroup& group) {
      const ParallelFor parallel_for = [&](int64_t chunks,
                                           const std::function<void(int64_t)>& decode) {
        return group.Distribute(chunks, decode);
      };
      for (size_t i = next++; i < n; i = next++) {
        task(arrays_[i], parallel_for);
        ++done;
        group.Wake();
      }
      for (uint64_t seen = group.events(); done < n && !group.stopping(); seen = group.events()) {
        group.HelpOrWait(seen);
      }
    });
  }

  const int n_threads_;
  const OrbaxCheckpoint checkpoint_;
  const std::optional<OrbaxCheckpoint> exact_;
  const std::unique_ptr<convert::ModelSource> source_;
  std::vector<Array> arrays_;
  size_t n_leaves_ = 0;  // arrays_ that are parameters
};

}  // namespace

int RunOrbaxBench(std::ostream& out, const OrbaxBenchOptions& options) {
  std::optional<Rechunked> rechunked;
  if (options.max_chunk_bytes > 0) rechunked.emplace(options.path, options.max_chunk_bytes);
  const OrbaxBench bench(rechunked ? rechunked->dir() : options.path, options);
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
                "decompressed only  %7.0f MiB/s\nread as arrays     %7.0f MiB/s = %.2f of "
                "that\nimported           %7.0f MiB/s = %.2f of that\n",
                mib, bench.n_threads(), options.rounds, mib / Median(alone), mib / Median(read),
                Median(read_ratios), mib / Median(import), Median(import_ratios));
  out << line;
  return 0;
}

}  // namespace tandem::bench
