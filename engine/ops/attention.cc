#include "engine/ops/attention.h"

#include <algorithm>
#include <cstring>

#include "engine/kernels/kernels.h"
#include "engine/ops/attention_checks.h"
#include "engine/ops/parallel.h"

// A task is some query rows of one slice against some kv heads: all heads of their groups, so that
// keys and values are read once. Many rows take one kv head and all chunks of keys. Fewer rows take
// one chunk. Few rows also take several kv heads, which lie side by side: their reads are longer.
// Chunks are merged in order, so tasks change speed, never a result.
namespace tandem::engine {
namespace {

static_assert(kTokensPerBlock == kLanes);

// Rows are query rows times heads of the group.
constexpr int64_t kMostRows = 192;  // of a task
constexpr int64_t kCutRows = 48;    // at most so many are cut by chunk
constexpr int64_t kFewRows = 16;    // at most so many take several kv heads
constexpr int64_t kMostKvHeads = 8;
// So that the last tasks of a call leave few threads idle.
constexpr int64_t kAttentionTasksPerThread = 4;
constexpr int64_t kLeastTasks = 16;

// Some rows of a slice, and the chunks of keys that any of them sees.
struct QueryRows {
  int64_t first;  // in the slice
  int64_t count;
  int64_t text_start;      // a chunk of the spec is a text of its own
  int64_t first_position;  // in the text
  int64_t first_chunk;     // kKeyChunk keys each
  int64_t end_chunk;
};

QueryRows RowsAt(const AttentionSpec& spec, const AttentionSlice& slice, int64_t first,
                 int64_t most) {
  const int64_t position = slice.first_position + first;
  QueryRows rows = {.first = first,
                    .count = std::min(most, slice.n_rows - first),
                    .text_start = 0,
                    .first_position = position,
                    .first_chunk = 0,
                    .end_chunk = 0};
  if (spec.chunk > 0) {
    rows.first_position = position % spec.chunk;
    rows.text_start = position - rows.first_position;
    rows.count = std::min(rows.count, spec.chunk - rows.first_position);
  }
  // Chunks before every row's window have no visible keys.
  if (spec.window > 0) {
    rows.first_chunk = std::max<int64_t>(0, rows.first_position - spec.window + 1) / kKeyChunk;
  }
  rows.end_chunk = (rows.first_position + rows.count - 1) / kKeyChunk + 1;
  return rows;
}

struct Task {
  int64_t slice;
  QueryRows rows;
  int64_t kv_head;  // the first
  int64_t n_kv_heads;
  int64_t first_chunk;
  int64_t end_chunk;
  int64_t n_parts;      // tasks with these rows and heads, on the first of them; 0 on the others
  AttentionState part;  // of a task that is a part, else empty
};

// How the slices of a call are cut into tasks. Only whole slices are cut by chunk, so a long
// prompt leaves no parts to merge.
struct AttentionCut {
  int64_t most_queries;    // of a task
  int64_t cut_queries;     // slices of at most so many take one chunk of keys a task
  int64_t few_queries;     // slices of at most so many take several kv heads a task
  int64_t n_few_kv_heads;  // the several
};

// Calls visit(slice, rows, n_kv_heads, n_chunks) for rows whose tasks have so many heads and
// chunks.
template <class Visit>
void ForEachRows(const AttentionSpec& spec, std::span<const AttentionSlice> slices,
                 const AttentionCut& cut, const Visit& visit) {
  for (size_t s = 0; s < slices.size(); ++s) {
    const int64_t n_rows = slices[s].n_rows;
    for (int64_t first = 0; first < n_rows;) {
      const QueryRows rows = RowsAt(spec, slices[s], first, cut.most_queries);
      first += rows.count;
      visit(static_cast<int64_t>(s), rows,
            n_rows <= cut.few_queries ? cut.n_few_kv_heads : int64_t{1},
            n_rows <= cut.cut_queries ? int64_t{1} : rows.end_chunk - rows.first_chunk);
    }
  }
}

// Tasks have fewer rows and fewer kv heads if kAttentionTasksPerThread a thread would not remain.
AttentionCut CutAttention(const AttentionSpec& spec, std::span<const AttentionSlice> slices,
                          int n_threads) {
  const int64_t group = spec.n_heads / spec.n_kv_heads;
  const int64_t wanted = std::max<int64_t>(kLeastTasks, kAttentionTasksPerThread * n_threads);
  AttentionCut cut = {.most_queries = std::max<int64_t>(1, kMostRows / group),
                      .cut_queries = std::max<int64_t>(1, kCutRows / group),
                      .few_queries = kFewRows / group,
                      .n_few_kv_heads = 1};
  int64_t tasks = 0;
  int64_t few_tasks = 0;
  const auto count = [&](int64_t slice, const QueryRows& rows, int64_t, int64_t n_chunks) {
    const int64_t added = (rows.end_chunk - rows.first_chunk) / n_chunks * spec.n_kv_heads;
    tasks += added;
    if (slices[static_cast<size_t>(slice)].n_rows <= cut.few_queries) few_tasks += added;
  };
  ForEachRows(spec, slices, cut, count);
  if (tasks < wanted) cut.most_queries = std::max<int64_t>(1, cut.most_queries / 2);
  cut.n_few_kv_heads =
      std::min(std::clamp<int64_t>(few_tasks / wanted, 1, kMostKvHeads), spec.n_kv_heads);
  while (spec.n_kv_heads % cut.n_few_kv_heads != 0) --cut.n_few_kv_heads;
  return cut;
}

// Calls visit(task) for all tasks. The parts of the same rows and heads follow each other.
template <class Visit>
void ForEachTask(const AttentionSpec& spec, std::span<const AttentionSlice> slices,
                 const AttentionCut& cut, const Visit& visit) {
  const auto tasks_of_rows = [&](int64_t slice, const QueryRows& rows, int64_t n_kv_heads,
                                 int64_t n_chunks) {
    for (int64_t h = 0; h < spec.n_kv_heads; h += n_kv_heads) {
      for (int64_t c = rows.first_chunk; c < rows.end_chunk; c += n_chunks) {
        const int64_t n_parts = (rows.end_chunk - rows.first_chunk) / n_chunks;
        visit(Task{.slice = slice,
                   .rows = rows,
                   .kv_head = h,
                   .n_kv_heads = n_kv_heads,
                   .first_chunk = c,
                   .end_chunk = c + n_chunks,
                   .n_parts = c == rows.first_chunk ? n_parts : 0,
                   .part = {}});
      }
    }
  };
  ForEachRows(spec, slices, cut, tasks_of_rows);
}

int64_t StateFloats(int64_t rows, int64_t acc_stride) {
  return RoundUp<int64_t>(rows, kLanes) * (1 + kLanes + acc_stride);
}

AttentionState StateAt(float* f, int64_t rows, int64_t acc_stride) {
  const int64_t padded = RoundUp<int64_t>(rows, kLanes);
  return {.max = f,
          .sum = f + padded,
          .acc = f + padded * (1 + kLanes),
          .rows = rows,
          .acc_stride = acc_stride};
}

// The rows [first, first + count) of a state.
AttentionState RowsOf(const AttentionState& state, int64_t first, int64_t count) {
  return {.max = state.max + first,
          .sum = state.sum + first * kLanes,
          .acc = state.acc + first * state.acc_stride,
          .rows = count,
          .acc_stride = state.acc_stride};
}

// Divides one worker's scratch among the parts of a task.
struct TaskScratch {
  static size_t Bytes(int64_t rows, int64_t q_stride_bytes, int64_t acc_stride,
                      int64_t kernel_bytes) {
    return static_cast<size_t>(rows * q_stride_bytes + kernel_bytes) + 64 +
           2 * static_cast<size_t>(StateFloats(rows, acc_stride)) * sizeof(float);
  }

  TaskScratch(std::byte* scratch, int64_t rows, int64_t q_stride_bytes, int64_t acc_stride)
      : q(scratch) {
    float* f = reinterpret_cast<float*>(scratch + RoundUp<int64_t>(rows * q_stride_bytes, 64));
    const int64_t floats = StateFloats(rows, acc_stride);
    total = StateAt(f, rows, acc_stride);
    part = StateAt(f + floats, rows, acc_stride);
    of_kernel = reinterpret_cast<std::byte*>(f + 2 * floats);
  }

  std::byte* q;
  AttentionState total;
  AttentionState part;
  std::byte* of_kernel;  // AttentionArgs::scratch
};

// The softmax state of a key without a value: the sinks of the heads of each row. Merging it as the
// last chunk keeps the order of every row's sum fixed.
void PutSinks(const float* sinks, int64_t group, const AttentionState& state) {
  for (int64_t r = 0; r < state.rows; ++r) {
    state.max[r] = sinks[r % group];
    std::fill_n(state.sum + r * kLanes, kLanes, 0.0f);
    state.sum[r * kLanes] = 1;
    std::fill_n(state.acc + r * state.acc_stride, state.acc_stride, 0.0f);
  }
}

// One call of Attention.
template <class T>
class AttentionRun {
 public:
  AttentionRun(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
               std::span<const AttentionSlice> slices, const KvLayerView& kv, const Matrix& out,
               float* lse, const float* sinks)
      : ops_(ops),
        spec_(spec),
        q_(q),
        slices_(slices),
        kv_(kv),
        out_(out),
        lse_(lse),
        sinks_(sinks) {}

  void Run() {
    ListTasks();
    const auto run = [&](int64_t index, int worker) { RunTask(tasks_[index], worker); };
    ops_.pool().ParallelFor(n_tasks_, std::cref(run));
    if (!has_parts_) return;
    const auto merge = [&](int64_t index, int worker) { MergeParts(tasks_ + index, worker); };
    ops_.pool().ParallelFor(n_tasks_, std::cref(merge));
  }

 private:
  void ListTasks() {
    const AttentionCut cut = CutAttention(spec_, slices_, ops_.pool().n_threads());
    int64_t most_rows = 0;
    int64_t part_floats = 0;
    const auto count = [&](const Task& task) {
      ++n_tasks_;
      most_rows = std::max(most_rows, RowsOfTask(task));
      if (IsPart(task)) part_floats += StateFloats(RowsOfTask(task), acc_stride_);
    };
    ForEachTask(spec_, slices_, cut, count);
    const auto task_bytes = RoundUp<size_t>(static_cast<size_t>(n_tasks_) * sizeof(Task), 64);
    std::byte* const shared =
        ops_.SharedScratch(task_bytes + static_cast<size_t>(part_floats) * sizeof(float));
    tasks_ = reinterpret_cast<Task*>(shared);
    float* next_part = reinterpret_cast<float*>(shared + task_bytes);
    Task* next = tasks_;
    const auto list = [&](const Task& task) {
      *next = task;
      if (IsPart(task)) {
        has_parts_ = true;
        next->part = StateAt(next_part, RowsOfTask(task), acc_stride_);
        next_part += StateFloats(RowsOfTask(task), acc_stride_);
      }
      ++next;
    };
    ForEachTask(spec_, slices_, cut, list);
    const int64_t kernel_bytes =
        AttentionScratchBytes(most_rows, q_stride_, q_stride_, RowStride(kv_.dtype, value_dim_));
    ReserveWorkerScratch(ops_,
                         TaskScratch::Bytes(most_rows, q_stride_bytes_, acc_stride_, kernel_bytes));
  }

  int64_t RowsOfTask(const Task& task) const { return task.n_kv_heads * task.rows.count * group_; }
  static bool IsPart(const Task& task) {
    return task.end_chunk - task.first_chunk < task.rows.end_chunk - task.rows.first_chunk;
  }
  TaskScratch ScratchOf(const Task& task, int worker) {
    return TaskScratch(ops_.WorkerScratch(worker, 0), RowsOfTask(task), q_stride_bytes_,
                       acc_stride_);
  }
  const AttentionSlice& SliceOf(const Task& task) const {
    return slices_[static_cast<size_t>(task.slice)];
  }

  // Copies the queries of the task's heads, by kv head, each padded to pairs.
  void CopyQueries(const Task& task, T* to) const {
    const int64_t first_row = SliceOf(task).first_row + task.rows.first;
    for (int64_t h = task.kv_head; h < task.kv_head + task.n_kv_heads; ++h) {
      for (int64_t r = 0; r < task.rows.count * group_; ++r, to += q_stride_) {
        std::memcpy(to,
                    static_cast<const T*>(q_.data) + (first_row + r / group_) * q_.stride +
                        (h * group_ + r % group_) * spec_.head_dim,
                    static_cast<size_t>(spec_.head_dim) * sizeof(T));
        std::fill(to + spec_.head_dim, to + q_stride_, T{0});
      }
    }
  }

  void RunTask(const Task& task, int worker) {
    const TaskScratch scratch = ScratchOf(task, worker);
    T* const queries = reinterpret_cast<T*>(scratch.q);
    CopyQueries(task, queries);
    AttentionArgs<T> args = {
        .q = queries,
        .ldq = q_stride_,
        .rows = task.rows.count * group_,
        .group = group_,
        .head_dim = spec_.head_dim,
        .value_dim = value_dim_,
        .first_position = task.rows.first_position,
        .key_first = 0,
        .scale = spec_.scale,
        .window = spec_.window,
        .soft_cap = spec_.soft_cap,
        .keys = kv_.keys + task.kv_head * key_bytes_,
        .values = kv_.values + task.kv_head * value_bytes_,
        .key_stride_bytes = kv_.key_stride_bytes,
        .value_stride_bytes = kv_.value_stride_bytes,
        .blocks = SliceOf(task).blocks.data() + task.rows.text_start / kTokensPerBlock,
        .is_int8 = kv_.format == KvFormat::kInt8,
        .scratch = scratch.of_kernel,
        .n_kv_heads = task.n_kv_heads,
        .key_head_bytes = key_bytes_,
        .value_head_bytes = value_bytes_};
    const AttentionState total = IsPart(task) ? task.part : scratch.total;
    for (int64_t chunk = task.first_chunk; chunk < task.end_chunk; ++chunk) {
      args.key_first = chunk * kKeyChunk;
      const bool is_first = chunk == task.first_chunk;
      kernels_.attention_chunk(args, is_first ? total : scratch.part);
      if (!is_first) ops_.kernels().attention_merge(total, scratch.part);
    }
    if (!IsPart(task)) Finish(task, total, scratch.part);
  }

  // Merges the parts that begin with *first, if it is the first one.
  void MergeParts(const Task* first, int worker) {
    if (first->n_parts <= 1) return;
    for (int64_t i = 1; i < first->n_parts; ++i) {
      ops_.kernels().attention_merge(first->part, first[i].part);
    }
    Finish(*first, first->part, ScratchOf(*first, worker).part);
  }

  // Writes the task's output. `sink` has room for a state.
  void Finish(const Task& task, const AttentionState& total, const AttentionState& sink) const {
    const int64_t rows = task.rows.count * group_;
    const int64_t first_row = SliceOf(task).first_row + task.rows.first;
    for (int64_t h = 0; h < task.n_kv_heads; ++h) {
      const AttentionState state = RowsOf(total, h * rows, rows);
      const int64_t first_head = (task.kv_head + h) * group_;
      if (sinks_ != nullptr) {
        PutSinks(sinks_ + first_head, group_, RowsOf(sink, 0, rows));
        ops_.kernels().attention_merge(state, RowsOf(sink, 0, rows));
      }
      kernels_.attention_finish(
          state, group_, value_dim_,
          static_cast<T*>(out_.data) + first_row * out_.stride + first_head * value_dim_,
          out_.stride, lse_ == nullptr ? nullptr : lse_ + first_row * spec_.n_heads + first_head,
          spec_.n_heads);
    }
  }

  OpsContext& ops_;
  const AttentionSpec& spec_;
  const ConstMatrix& q_;
  const std::span<const AttentionSlice> slices_;
  const KvLayerView& kv_;
  const Matrix& out_;
  float* const lse_;
  const float* const sinks_;
  const TypedKernels<T>& kernels_ = ops_.kernels().typed<T>();
  const int64_t group_ = spec_.n_heads / spec_.n_kv_heads;
  const int64_t value_dim_ = spec_.value_dim();
  const int64_t acc_stride_ = RoundUp<int64_t>(value_dim_, kLanes);
  const int64_t q_stride_ = RowStride(q_.dtype, spec_.head_dim);
  const int64_t q_stride_bytes_ = q_stride_ * static_cast<int64_t>(sizeof(T));
  const int64_t key_bytes_ = KvHeadBlockBytes(kv_.dtype, spec_.head_dim, kv_.format);
  const int64_t value_bytes_ = KvHeadBlockBytes(kv_.dtype, value_dim_, kv_.format);
  Task* tasks_ = nullptr;
  int64_t n_tasks_ = 0;
  bool has_parts_ = false;
};

// Zeroes the padding of the rows of odd width.
template <class T>
void PadRows(std::span<const AttentionSlice> slices, int64_t cols, const Matrix& out) {
  if (cols == RowStride(out.dtype, cols)) return;
  for (const AttentionSlice& slice : slices) {
    for (int64_t r = slice.first_row; r < slice.first_row + slice.n_rows; ++r) {
      static_cast<T*>(out.data)[r * out.stride + cols] = T{0};
    }
  }
}

}  // namespace

void Attention(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
               std::span<const AttentionSlice> slices, const KvLayerView& kv, const Matrix& out,
               float* lse, const float* sinks) {
  CheckAttention(spec);
  for (const AttentionSlice& slice : slices) CheckAttention(slice);
  TANDEM_CHECK(q.dtype == kv.dtype && out.dtype == kv.dtype);
  WithComputeType(kv.dtype, [&]<class T>() {
    AttentionRun<T>(ops, spec, q, slices, kv, out, lse, sinks).Run();
    PadRows<T>(slices, spec.n_heads * spec.value_dim(), out);
  });
}

}  // namespace tandem::engine
