// The products of chosen experts, and their sum. router.cc has the choice.

#include "engine/ops/experts.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <functional>

#include "engine/base/check.h"
#include "engine/base/trace/parallel_trace.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/block_rows.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

constexpr int64_t kCacheLine = 64;
// Below this many multiply-adds, a second core does not pay (engine/ops/matmul.cc).
constexpr int64_t kLeastWork = 1 << 16;
// A task's product of several rows lies in worker scratch until its rows are copied to their slots.
constexpr int64_t kMostRowsOfTask = 128;
constexpr int64_t kMostPanelsOfTask = 24;
// Six panels are whole register tiles in every table.
constexpr int64_t kPanelStep = 6;

// The slots of one expert in a call of ExpertMatMul.
struct Group {
  int32_t expert;
  int32_t first;  // in the sorted slots
  int32_t count;
  int64_t first_task;
};

int64_t Lines(int64_t bytes) { return RoundUp(bytes, kCacheLine); }

// Elements from one gathered row to the next: a cache line more than k (block_rows.h says why).
template <class T>
int64_t GatheredStride(int64_t k) {
  constexpr auto kLine = static_cast<int64_t>(kCacheLine / sizeof(T));
  return RoundUp(k, kLine) + kLine;
}

// The scratch of one call: group borders, sorted slots, groups, then rows of x.
struct ExpertLayout {
  ExpertLayout(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts, int64_t k,
               int64_t source_rows) {
    const int64_t slots = rows * top_k;
    sorted = Lines((n_experts + 1) * static_cast<int64_t>(sizeof(int32_t)));
    groups = sorted + Lines(slots * static_cast<int64_t>(sizeof(int32_t)));
    inputs = groups + Lines(std::min(slots, n_experts) * static_cast<int64_t>(sizeof(Group)));
    int64_t input_bytes = slots * GatheredStride<float>(k) * static_cast<int64_t>(sizeof(float));
    if (dtype == DType::kBF16) {
      input_bytes = std::max(slots * GatheredStride<Bf16>(k) * static_cast<int64_t>(sizeof(Bf16)),
                             (slots + source_rows) * BlockRows::BytesPerRow(k));
    }
    bytes = inputs + input_bytes;
  }
  int64_t sorted, groups, inputs, bytes;
};

// One call of ExpertMatMul.
class ExpertProduct {
 public:
  ExpertProduct(OpsContext& ops, const ConstMatrix& x, const ConstMatrix& routing,
                const ExpertMatrices& experts, float* y, int64_t ldy)
      : ops_(ops), x_(x), experts_(experts), y_(y), ldy_(ldy), top_k_(routing.cols / 2) {
    const PanelMatrix& one = experts.weight(0);
    n_ = one.n;
    k_ = one.k;
    TANDEM_CHECK(x.dtype == one.dtype && routing.rows == x.rows && top_k_ >= 1);
    TANDEM_CHECK(x.cols == k_ || x.cols == top_k_ * k_);
    shared_ = x.cols == k_;
    const ExpertLayout layout(x.dtype, x.rows, top_k_, experts.n_experts, k_, SourceRows());
    std::byte* scratch = ops.SharedScratch(static_cast<size_t>(layout.bytes));
    first_ = {reinterpret_cast<int32_t*>(scratch), static_cast<size_t>(experts.n_experts + 1)};
    sorted_ = {reinterpret_cast<int32_t*>(scratch + layout.sorted), Size(x.rows * top_k_)};
    groups_ = reinterpret_cast<Group*>(scratch + layout.groups);
    inputs_ = scratch + layout.inputs;
    ReserveWorkerScratch(ops, kMostRowsOfTask * kMostPanelsOfTask * kLanes * sizeof(float));
    GroupByExpert(routing, experts.n_experts, first_, sorted_);
  }

  // One pass per format; experts of one layer mostly share it.
  void Run() {
    FormatSet formats = FormatsInUse();
    if (formats.test(0)) {
      ListGroups(BlockFormat::kNone);
      WithComputeType(x_.dtype, [&]<class T>() { RunGroups(PanelInput<T>(*this)); });
    }
    for (const BlockFormat format : kBlockFormats) {
      if (!formats.test(static_cast<size_t>(format))) continue;
      ListGroups(format);
      RunGroups(BlockInput(*this));
    }
  }

 private:
  // Rows of x in panels' arithmetic. A slot alone with its expert reads x in place.
  template <class T>
  class PanelInput {
   public:
    explicit PanelInput(const ExpertProduct& product)
        : product_(product),
          ld_(GatheredStride<T>(product.k_)),
          gathered_(reinterpret_cast<T*>(product.inputs_)) {}

    // Kernels read pairs of bf16; a slot that begins between two is copied.
    bool ReadsInPlace() const {
      return product_.shared_ || product_.k_ % 2 == 0 || sizeof(T) == sizeof(float);
    }
    void Gather(int64_t slot, int64_t to) const {
      T* row = gathered_ + to * ld_;
      std::memcpy(row, At(slot), Size(product_.k_) * sizeof(T));
      for (int64_t i = product_.k_; i < RowStride(product_.x_.dtype, product_.k_); ++i)
        row[i] = T{};
    }
    void Multiply(const PanelMatrix& w, const float* bias, bool in_place, int64_t row, int64_t m,
                  int64_t panel, int64_t n_panels, float* y, int64_t ldy) const {
      const T* x = in_place ? At(row) : gathered_ + row * ld_;
      product_.ops_.kernels().typed<T>().matmul(
          PanelProduct<T>(w, x, ld_, m, panel, n_panels, bias, y, ldy));
    }

   private:
    const T* At(int64_t slot) const {
      const ConstMatrix& x = product_.x_;
      const T* row = static_cast<const T*>(x.data) + slot / product_.top_k_ * x.stride;
      return product_.shared_ ? row : row + slot % product_.top_k_ * product_.k_;
    }
    const ExpertProduct& product_;
    int64_t ld_;
    T* gathered_;
  };

  // Rows of x as integers: each row of x (or slot of it) is rounded once.
  class BlockInput {
   public:
    explicit BlockInput(const ExpertProduct& product)
        : product_(product),
          format_(product.experts_.weight(product.groups_[0].expert)),
          source_(product.inputs_, product.SourceRows(), format_),
          gathered_(product.inputs_ + product.SourceRows() * BlockRows::BytesPerRow(product.k_),
                    product.x_.rows * product.top_k_, format_) {
      const int64_t per_row = product.shared_ ? 1 : product.top_k_;
      const auto quantize = [&](int64_t first, int64_t count, int) {
        for (int64_t row = first; row < first + count; ++row) {
          source_.Quantize(*product_.ops_.kernels().blocks,
                           static_cast<const Bf16*>(product_.x_.data) + row * product_.x_.stride,
                           product_.k_, row * per_row, per_row);
        }
      };
      ParallelRows(product.ops_, product.x_.rows, per_row * product.k_ / 4, quantize);
    }

    bool ReadsInPlace() const { return true; }
    void Gather(int64_t slot, int64_t to) const { gathered_.CopyRow(source_, SourceOf(slot), to); }
    void Multiply(const PanelMatrix& w, const float* bias, bool in_place, int64_t row, int64_t m,
                  int64_t panel, int64_t n_panels, float* y, int64_t ldy) const {
      const BlockRows& rows = in_place ? source_ : gathered_;
      product_.ops_.kernels().blocks->matmul(w.block)(
          rows.Product(w, in_place ? SourceOf(row) : row, m, panel, n_panels, bias, y, ldy));
    }

   private:
    int64_t SourceOf(int64_t slot) const {
      return product_.shared_ ? slot / product_.top_k_ : slot;
    }
    const ExpertProduct& product_;
    const PanelMatrix& format_;
    BlockRows source_;
    BlockRows gathered_;
  };

  static size_t Size(int64_t n) { return static_cast<size_t>(n); }
  int64_t SourceRows() const { return shared_ ? x_.rows : x_.rows * top_k_; }
  int64_t PanelCount() const { return (n_ + kLanes - 1) / kLanes; }

  // By block format: whether an expert in use has it.
  using FormatSet = std::bitset<std::size(kBlockFormats) + 1>;
  FormatSet FormatsInUse() const {
    FormatSet formats;
    for (int64_t e = 0; e < experts_.n_experts; ++e) {
      if (first_[Size(e)] == first_[Size(e) + 1]) continue;
      const PanelMatrix& w = experts_.weight(e);
      TANDEM_CHECK(w.n == n_ && w.k == k_ && w.dtype == x_.dtype);
      formats.set(static_cast<size_t>(w.block));
    }
    return formats;
  }

  // Lists the experts in use whose weights have this format.
  void ListGroups(BlockFormat format) {
    n_groups_ = 0;
    most_rows_ = 0;
    slots_ = 0;
    for (int64_t e = 0; e < experts_.n_experts; ++e) {
      const int32_t first = first_[Size(e)], count = first_[Size(e) + 1] - first;
      if (count == 0 || experts_.weight(e).block != format) continue;
      groups_[n_groups_++] = {static_cast<int32_t>(e), first, count, 0};
      most_rows_ = std::max<int64_t>(most_rows_, count);
      slots_ += count;
    }
  }

  // A task is a range of panels and up to kMostRowsOfTask rows of one group.
  int64_t CutTasks() {
    const int64_t panels = PanelCount();
    const int64_t rows = std::min(kMostRowsOfTask, (slots_ + n_groups_ - 1) / n_groups_);
    const int64_t least =
        std::clamp<int64_t>(kLeastWork / (rows * k_ * kLanes), 1, kMostPanelsOfTask);
    panels_per_task_ =
        RoundUp(std::clamp(n_groups_ * panels / 32, least, kMostPanelsOfTask), kPanelStep);
    panel_tasks_ = (panels + panels_per_task_ - 1) / panels_per_task_;
    int64_t tasks = 0;
    for (int64_t g = 0; g < n_groups_; ++g) {
      groups_[g].first_task = tasks;
      tasks += (groups_[g].count + kMostRowsOfTask - 1) / kMostRowsOfTask * panel_tasks_;
    }
    return tasks;
  }

  // Bytes of all experts in use; they have one shape and one format.
  int64_t WeightBytes() const {
    const BlockFormat block = experts_.weight(groups_[0].expert).block;
    return n_groups_ *
           (block == BlockFormat::kNone ? PanelBytes(x_.dtype, n_, k_) : PanelBytes(block, n_, k_));
  }

  template <class Input>
  void RunGroups(const Input& input) {
    if (most_rows_ > 1 || !input.ReadsInPlace()) {
      const auto gather = [&](int64_t first, int64_t count, int) {
        for (int64_t i = first; i < first + count; ++i) input.Gather(sorted_[Size(i)], i);
      };
      ParallelRows(ops_, static_cast<int64_t>(sorted_.size()), k_ / 4, gather);
    }
    const int64_t n_tasks = CutTasks();
    const auto run = [&](int64_t task, int worker) { RunTask(input, task, worker); };
    if (slots_ * n_ * k_ < kLeastWork) {
      for (int64_t task = 0; task < n_tasks; ++task) run(task, 0);
    } else {
      ParallelTrace::NoteWeights([&] { return WeightBytes(); });
      ops_.pool().ParallelFor(n_tasks, std::cref(run));
    }
  }

  template <class Input>
  void RunTask(const Input& input, int64_t task, int worker) const {
    const Group& group =
        *(std::upper_bound(groups_, groups_ + n_groups_, task,
                           [](int64_t t, const Group& g) { return t < g.first_task; }) -
          1);
    const int64_t local = task - group.first_task;
    const int64_t begin = local / panel_tasks_ * kMostRowsOfTask;
    const int64_t panel = local % panel_tasks_ * panels_per_task_;
    const int64_t m = std::min<int64_t>(kMostRowsOfTask, group.count - begin);
    const int64_t column = panel * kLanes;
    const PanelMatrix& w = experts_.weight(group.expert);
    const float* bias = experts_.bias ? experts_.bias(group.expert) : nullptr;
    const int64_t row = group.first + begin;
    const int32_t* slots = sorted_.data() + row;
    if (m == 1) {
      const bool in_place = group.count == 1 && input.ReadsInPlace();
      input.Multiply(w, bias, in_place, in_place ? slots[0] : row, 1, panel, panels_per_task_,
                     Output(slots[0]) + column, ldy_);
      return;
    }
    auto* out = reinterpret_cast<float*>(ops_.WorkerScratch(worker, 0));
    const int64_t columns = std::min(panels_per_task_ * kLanes, n_ - column);
    input.Multiply(w, bias, false, row, m, panel, panels_per_task_, out, columns);
    for (int64_t i = 0; i < m; ++i) {
      std::memcpy(Output(slots[i]) + column, out + i * columns, Size(columns) * sizeof(float));
    }
  }

  float* Output(int64_t slot) const { return y_ + slot / top_k_ * ldy_ + slot % top_k_ * n_; }

  OpsContext& ops_;
  const ConstMatrix& x_;
  const ExpertMatrices& experts_;
  float* y_;
  int64_t ldy_;
  int64_t top_k_;
  int64_t n_ = 0, k_ = 0;
  bool shared_ = true;
  std::span<int32_t> first_;
  std::span<int32_t> sorted_;
  Group* groups_ = nullptr;
  std::byte* inputs_ = nullptr;
  int64_t n_groups_ = 0;
  int64_t most_rows_ = 0;  // of a group
  int64_t slots_ = 0;      // of all listed groups
  int64_t panels_per_task_ = 0;
  int64_t panel_tasks_ = 0;
};

}  // namespace

void GroupByExpert(const ConstMatrix& routing, int64_t n_experts, std::span<int32_t> first,
                   std::span<int32_t> slots) {
  const int64_t top_k = routing.cols / 2;
  TANDEM_CHECK(static_cast<int64_t>(first.size()) == n_experts + 1);
  TANDEM_CHECK(static_cast<int64_t>(slots.size()) == routing.rows * top_k);
  const auto id_at = [&](int64_t slot) {
    return static_cast<const float*>(routing.data)[slot / top_k * routing.stride + slot % top_k];
  };
  std::fill(first.begin(), first.end(), 0);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const float id = id_at(static_cast<int64_t>(slot));
    TANDEM_CHECK(id >= 0 && id < static_cast<float>(n_experts));  // false for NaN
    ++first[static_cast<size_t>(id) + 1];
  }
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto expert = static_cast<size_t>(id_at(static_cast<int64_t>(slot)));
    slots[static_cast<size_t>(first[expert]++)] = static_cast<int32_t>(slot);
  }
  // Each entry has moved to the end of its group.
  for (size_t e = first.size() - 1; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void ExpertMatMul(OpsContext& ops, const ConstMatrix& x, const ConstMatrix& routing,
                  const ExpertMatrices& experts, float* y, int64_t ldy) {
  if (x.rows == 0) return;
  ExpertProduct(ops, x, routing, experts, y, ldy).Run();
}

ScratchBytes ExpertScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts, int64_t k) {
  CheckedMul(rows, top_k, "slots of experts");
  const ExpertLayout layout(dtype, rows, top_k, n_experts, k, rows * top_k);
  return {
      .shared = layout.bytes,
      .worker = kMostRowsOfTask * kMostPanelsOfTask * kLanes * static_cast<int64_t>(sizeof(float))};
}

void CombineExperts(OpsContext& ops, const float* y, int64_t ldy, const ConstMatrix& routing,
                    const Matrix& out) {
  const int64_t top_k = routing.cols / 2;
  TANDEM_CHECK(out.dtype == DType::kF32 && out.rows == routing.rows);
  const auto combine = [&](int64_t first, int64_t count, int) {
    for (int64_t row = first; row < first + count; ++row) {
      const float* weights = static_cast<const float*>(routing.data) + row * routing.stride + top_k;
      float* to = static_cast<float*>(out.data) + row * out.stride;
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const float* from = y + row * ldy + slot * out.cols;
        const float weight = weights[slot];
        if (slot == 0) {
          for (int64_t i = 0; i < out.cols; ++i) to[i] = weight * from[i];
        } else {
          for (int64_t i = 0; i < out.cols; ++i) to[i] += weight * from[i];
        }
      }
    }
  };
  ParallelRows(ops, out.rows, top_k * out.cols, combine);
}

}  // namespace tandem::engine
