#include "training/ops/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::training {
namespace {

using engine::kLanes;
using engine::kMaxConvKernel;
using engine::kMaxStateKey;

constexpr int64_t kStateRows = 64;        // rows between kept states of a backward pass
constexpr int64_t kBackwardRange = 64;    // channels of one task
constexpr int64_t kMaxStateValue = 1024;  // columns of a head's state

int64_t LongestSegment(std::span<const Segment> segments) {
  int64_t rows = 0;
  for (const Segment& segment : segments) rows = std::max(rows, segment.n_rows);
  return rows;
}

float LaneDot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

float SiluSlope(float x) {
  const float s = engine::SigmoidOf(x);
  return s * (1.0f + x * (1.0f - s));
}

// One range of channels of a convolution, over all segments in order.
struct ConvBackwardTask {
  const engine::ConvSpec& spec;
  const float* x;
  const float* w;
  const float* bias;
  const float* dy;
  float* dx;
  float* dw;
  float* dbias;
  int64_t first, n;
  float* dsum;  // [rows of a segment][kBackwardRange]: gradients of the sums before the gate

  float Input(int64_t row, int64_t c) const {
    const float* in = x + row * spec.inputs() + first + c;
    return spec.form == engine::ConvForm::kGated ? in[0] * in[2 * spec.channels] : in[0];
  }

  void Run(const Segment& segment) const {
    for (int64_t r = 0; r < segment.n_rows; ++r) Sums(segment, r);
    for (int64_t r = 0; r < segment.n_rows; ++r) Inputs(segment, r);
  }

  // Gradients of a row's sums, of the gate C and of the taps.
  void Sums(const Segment& segment, int64_t r) const {
    const int64_t row = segment.first_row + r;
    for (int64_t c = 0; c < n; ++c) {
      const int64_t channel = first + c;
      const float* taps = w + channel * spec.kernel;
      const int64_t begin = std::max<int64_t>(0, spec.kernel - 1 - r);
      float sum = bias == nullptr ? 0.0f : bias[channel];
      for (int64_t j = begin; j < spec.kernel; ++j) {
        sum += taps[j] * Input(row - spec.kernel + 1 + j, c);
      }
      float d = dy[row * spec.channels + channel];
      if (spec.form == engine::ConvForm::kSilu) d *= SiluSlope(sum);
      if (spec.form == engine::ConvForm::kGated) {
        const int64_t gate = row * spec.inputs() + spec.channels + channel;
        dx[gate] += d * sum;
        d *= x[gate];
      }
      dsum[r * kBackwardRange + c] = d;
      if (dbias != nullptr) dbias[channel] += d;
      if (dw == nullptr) continue;
      for (int64_t j = begin; j < spec.kernel; ++j) {
        dw[channel * spec.kernel + j] += d * Input(row - spec.kernel + 1 + j, c);
      }
    }
  }

  void Inputs(const Segment& segment, int64_t r) const {
    const int64_t row = segment.first_row + r;
    for (int64_t c = 0; c < n; ++c) {
      const float* taps = w + (first + c) * spec.kernel;
      float d = 0;
      for (int64_t j = spec.kernel - 1; j >= 0; --j) {
        const int64_t later = r + spec.kernel - 1 - j;
        if (later < segment.n_rows) d += taps[j] * dsum[later * kBackwardRange + c];
      }
      const int64_t at = row * spec.inputs() + first + c;
      if (spec.form != engine::ConvForm::kGated) {
        dx[at] += d;
        continue;
      }
      dx[at] += d * x[at + 2 * spec.channels];
      dx[at + 2 * spec.channels] += d * x[at];
    }
  }
};

// One row of a recurrence, and its gradients.
struct StepInput {
  const float* k;
  const float* q;
  const float* v;
  float decay;
  float beta;
};
struct StepGradient {
  float k[kMaxStateKey];
  float q[kMaxStateKey];
  float v[kMaxStateValue];
  float decay;
  float beta;
};

int64_t StateBytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

// The backward pass of one head over one segment.
class HeadBackward {
 public:
  HeadBackward(int64_t k_dim, int64_t v_dim, bool corrects, float* scratch, int64_t rows)
      : k_dim_(k_dim), v_dim_(v_dim), size_(k_dim * v_dim), corrects_(corrects) {
    kept_ = scratch;
    states_ = kept_ + (rows / kStateRows + 1) * size_;
    ds_ = states_ + (kStateRows + 1) * size_;
  }

  // input(r) gives row r; take(r, gradient) gets its gradients, last row first. dy(r) is the
  // gradient of the row's output [v_dim].
  template <class Input, class Dy, class Take>
  void Run(int64_t n_rows, const Input& input, const Dy& dy, const Take& take) {
    float* s = states_;
    std::fill_n(s, size_, 0.0f);
    for (int64_t r = 0; r < n_rows; ++r) {
      if (r % kStateRows == 0) std::copy_n(s, size_, kept_ + r / kStateRows * size_);
      Step(s, input(r));
    }
    std::fill_n(ds_, size_, 0.0f);
    for (int64_t begin = (n_rows - 1) / kStateRows * kStateRows; begin >= 0; begin -= kStateRows) {
      const int64_t count = std::min(kStateRows, n_rows - begin);
      std::copy_n(kept_ + begin / kStateRows * size_, size_, states_);
      for (int64_t i = 0; i < count; ++i) {
        std::copy_n(states_ + i * size_, size_, states_ + (i + 1) * size_);
        Step(states_ + (i + 1) * size_, input(begin + i));
      }
      for (int64_t i = count - 1; i >= 0; --i) {
        Row(states_ + i * size_, states_ + (i + 1) * size_, input(begin + i), dy(begin + i));
        take(begin + i, gradient_);
      }
    }
  }

 private:
  void Step(float* s, const StepInput& in) const {
    engine::StateStep(s, k_dim_, v_dim_, in.k, in.q, in.v, in.decay, in.beta, corrects_, nullptr);
  }

  // ds_ is the gradient of the state after the row, and becomes that of the state before it.
  void Row(const float* before, const float* after, const StepInput& in, const float* dy) {
    StepGradient& g = gradient_;
    float error[kMaxStateValue];   // v, less what the state knew
    float ddelta[kMaxStateValue];  // gradient of beta * error
    std::copy_n(in.v, v_dim_, error);
    std::fill_n(ddelta, v_dim_, 0.0f);
    for (int64_t i = 0; i < k_dim_; ++i) {
      float* ds = ds_ + i * v_dim_;
      g.q[i] = LaneDot(after + i * v_dim_, dy, v_dim_);
      for (int64_t c = 0; c < v_dim_; ++c) ds[c] += in.q[i] * dy[c];
      for (int64_t c = 0; c < v_dim_; ++c) ddelta[c] += ds[c] * in.k[i];
      if (!corrects_) continue;
      const float known = in.decay * in.k[i];
      for (int64_t c = 0; c < v_dim_; ++c) error[c] -= before[i * v_dim_ + c] * known;
    }
    g.beta = LaneDot(ddelta, error, v_dim_);
    for (int64_t c = 0; c < v_dim_; ++c) g.v[c] = in.beta * ddelta[c];
    g.decay = 0;
    for (int64_t i = 0; i < k_dim_; ++i) {
      float* ds = ds_ + i * v_dim_;
      const float* old = before + i * v_dim_;
      g.k[i] = in.beta * LaneDot(ds, error, v_dim_);
      if (corrects_) {
        g.k[i] -= in.decay * LaneDot(old, g.v, v_dim_);
        for (int64_t c = 0; c < v_dim_; ++c) ds[c] -= in.k[i] * g.v[c];
      }
      g.decay += LaneDot(ds, old, v_dim_);
      for (int64_t c = 0; c < v_dim_; ++c) ds[c] *= in.decay;
    }
  }

  const int64_t k_dim_, v_dim_, size_;
  const bool corrects_;
  float *kept_, *states_, *ds_;
  StepGradient gradient_;
};

// x / sqrt(sum of squares + eps) * scale, and its backward.
struct UnitVector {
  float values[kMaxStateKey];
  float by = 0;  // 1 / length

  void Set(const float* x, int64_t n, float scale) {
    by = 1.0f / std::sqrt(engine::SquaredLength(x, n) + engine::kDeltaEps);
    // In serving's order of operations where scale is 1 or part of the quotient.
    for (int64_t i = 0; i < n; ++i) values[i] = x[i] * (scale * by);
  }
  static void Backward(const float* x, int64_t n, float by, float scale, const float* dy,
                       float* dx) {
    const float along = LaneDot(x, dy, n) * by * by;
    for (int64_t i = 0; i < n; ++i) dx[i] += scale * by * (dy[i] - x[i] * along);
  }
};

}  // namespace

void FillStateRows(std::span<const Segment> segments, std::span<engine::StateRows> runs) {
  TANDEM_CHECK(runs.size() == segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    runs[i] = {.first_row = segments[i].first_row, .n_rows = segments[i].n_rows};
  }
}

int64_t ConvBackwardScratchBytes(int64_t segment_rows) {
  return StateBytes(segment_rows * kBackwardRange);
}

int64_t RecurrenceBackwardScratchBytes(int64_t k_dim, int64_t v_dim, int64_t segment_rows) {
  return StateBytes((segment_rows / kStateRows + 1 + kStateRows + 1 + 1) * k_dim * v_dim);
}

void CausalConvBackward(engine::OpsContext& ops, const engine::ConvSpec& spec, const float* x,
                        const float* w, const float* bias, const float* dy,
                        std::span<const Segment> segments, float* dx, float* dw, float* dbias) {
  const auto bytes = static_cast<size_t>(ConvBackwardScratchBytes(LongestSegment(segments)));
  engine::ReserveWorkerScratch(ops, bytes);
  const int64_t n_ranges = (spec.channels + kBackwardRange - 1) / kBackwardRange;
  engine::ParallelRanges(ops, n_ranges, 1, [&](int64_t range, int64_t, int worker) {
    const int64_t first = range * kBackwardRange;
    const ConvBackwardTask task{spec,
                                x,
                                w,
                                bias,
                                dy,
                                dx,
                                dw,
                                dbias,
                                first,
                                std::min(kBackwardRange, spec.channels - first),
                                reinterpret_cast<float*>(ops.WorkerScratch(worker, bytes))};
    for (const Segment& segment : segments) task.Run(segment);
  });
}

void GatedDeltaBackward(engine::OpsContext& ops, const engine::DeltaSpec& spec,
                        const engine::DeltaInputs& in, const float* dy,
                        std::span<const Segment> segments, const DeltaGradients& out) {
  TANDEM_CHECK(spec.v_dim <= kMaxStateValue);
  const int64_t longest = LongestSegment(segments);
  const auto bytes =
      static_cast<size_t>(RecurrenceBackwardScratchBytes(spec.k_dim, spec.v_dim, longest));
  engine::ReserveWorkerScratch(ops, bytes);
  const int64_t group = spec.n_v_heads / spec.n_k_heads;
  const float q_scale = 1.0f / std::sqrt(static_cast<float>(spec.k_dim));
  const auto run_head = [&](int64_t head, const Segment& segment, int worker) {
    const int64_t key = head / group * spec.k_dim;
    const int64_t value = 2 * spec.n_k_heads * spec.k_dim + head * spec.v_dim;
    const float rate = -std::exp(in.a_log[head]);
    UnitVector q, k;
    const auto input = [&](int64_t r) {
      const int64_t row = segment.first_row + r;
      const float* first = in.qkv + row * spec.inputs();
      q.Set(first + key, spec.k_dim, q_scale);
      k.Set(first + spec.n_k_heads * spec.k_dim + key, spec.k_dim, 1.0f);
      const int64_t at = row * spec.n_v_heads + head;
      return StepInput{k.values, q.values, first + value,
                       std::exp(rate * engine::Softplus(in.a[at] + in.dt_bias[head])),
                       engine::SigmoidOf(in.b[at])};
    };
    const auto take = [&](int64_t r, const StepGradient& g) {
      const int64_t row = segment.first_row + r;
      const float* from = in.qkv + row * spec.inputs();
      float* to = out.qkv + row * spec.inputs();
      const int64_t key_at = spec.n_k_heads * spec.k_dim + key;
      UnitVector::Backward(from + key, spec.k_dim, q.by, q_scale, g.q, to + key);
      UnitVector::Backward(from + key_at, spec.k_dim, k.by, 1.0f, g.k, to + key_at);
      for (int64_t c = 0; c < spec.v_dim; ++c) to[value + c] += g.v[c];
      const int64_t at = row * spec.n_v_heads + head;
      const float before = in.a[at] + in.dt_bias[head];
      const float step = rate * engine::Softplus(before);  // the logarithm of decay
      const float dstep = g.decay * std::exp(step);
      const float dbefore = dstep * rate * engine::SigmoidOf(before);
      out.a[at] += dbefore;
      const float beta = engine::SigmoidOf(in.b[at]);
      out.b[at] += g.beta * beta * (1.0f - beta);
      if (out.a_log != nullptr) out.a_log[head] += dstep * step;
      if (out.dt_bias != nullptr) out.dt_bias[head] += dbefore;
    };
    HeadBackward backward(spec.k_dim, spec.v_dim, true,
                          reinterpret_cast<float*>(ops.WorkerScratch(worker, bytes)), longest);
    backward.Run(
        segment.n_rows, input,
        [&](int64_t r) {
          return dy + (segment.first_row + r) * spec.outputs() + head * spec.v_dim;
        },
        take);
  };
  // The value heads of one key head add to the same q and k.
  engine::ParallelRanges(ops, spec.n_k_heads, 1, [&](int64_t key_head, int64_t, int worker) {
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      for (const Segment& segment : segments) run_head(head, segment, worker);
    }
  });
}

void SelectiveScanBackward(engine::OpsContext& ops, const engine::ScanSpec& spec,
                           const engine::ScanInputs& in, const float* dy,
                           std::span<const Segment> segments, const ScanGradients& out) {
  TANDEM_CHECK(spec.head_dim <= kMaxStateValue && spec.state_dim <= kMaxStateKey);
  const int64_t longest = LongestSegment(segments);
  const auto bytes =
      static_cast<size_t>(RecurrenceBackwardScratchBytes(spec.state_dim, spec.head_dim, longest));
  engine::ReserveWorkerScratch(ops, bytes);
  const int64_t group = spec.n_heads / spec.n_groups;
  const auto run_head = [&](int64_t head, const Segment& segment, int worker) {
    const int64_t b_at = spec.outputs() + head / group * spec.state_dim;
    const int64_t c_at = b_at + spec.n_groups * spec.state_dim;
    const float rate = -std::exp(in.a_log[head]);
    const auto dt_of = [&](int64_t row) {
      return engine::Softplus(in.dt[row * spec.n_heads + head] + in.dt_bias[head]);
    };
    const auto input = [&](int64_t r) {
      const int64_t row = segment.first_row + r;
      const float* first = in.xbc + row * spec.inputs();
      const float dt = std::clamp(dt_of(row), spec.least_dt, spec.most_dt);
      return StepInput{first + b_at, first + c_at, first + head * spec.head_dim,
                       std::exp(rate * dt), dt};
    };
    const auto take = [&](int64_t r, const StepGradient& g) {
      const int64_t row = segment.first_row + r;
      const float* x = in.xbc + row * spec.inputs() + head * spec.head_dim;
      const float* dout = dy + row * spec.outputs() + head * spec.head_dim;
      float* to = out.xbc + row * spec.inputs();
      for (int64_t i = 0; i < spec.state_dim; ++i) to[b_at + i] += g.k[i];
      for (int64_t i = 0; i < spec.state_dim; ++i) to[c_at + i] += g.q[i];
      for (int64_t i = 0; i < spec.head_dim; ++i) {
        to[head * spec.head_dim + i] += g.v[i] + in.d[head] * dout[i];
      }
      if (out.d != nullptr) out.d[head] += LaneDot(x, dout, spec.head_dim);
      const float raw = dt_of(row);
      const float dt = std::clamp(raw, spec.least_dt, spec.most_dt);
      const float dstep = g.decay * std::exp(rate * dt);
      if (out.a_log != nullptr) out.a_log[head] += dstep * rate * dt;
      if (raw != dt) return;  // clamped: no gradient passes
      const int64_t at = row * spec.n_heads + head;
      const float before = in.dt[at] + in.dt_bias[head];
      const float dbefore = (g.beta + dstep * rate) * engine::SigmoidOf(before);
      out.dt[at] += dbefore;
      if (out.dt_bias != nullptr) out.dt_bias[head] += dbefore;
    };
    HeadBackward backward(spec.state_dim, spec.head_dim, false,
                          reinterpret_cast<float*>(ops.WorkerScratch(worker, bytes)), longest);
    backward.Run(
        segment.n_rows, input,
        [&](int64_t r) {
          return dy + (segment.first_row + r) * spec.outputs() + head * spec.head_dim;
        },
        take);
  };
  // The heads of one group add to the same B and C.
  engine::ParallelRanges(ops, spec.n_groups, 1, [&](int64_t g, int64_t, int worker) {
    for (int64_t head = g * group; head < (g + 1) * group; ++head) {
      for (const Segment& segment : segments) run_head(head, segment, worker);
    }
  });
}

void GateRowsBackward(engine::OpsContext& ops, const engine::ConstMatrix& x, const float* gate,
                      engine::GateForm form, const float* dy, float* dx, float* dgate) {
  engine::WithComputeType(x.dtype, [&]<class T>() {
    engine::ParallelRows(ops, x.rows, x.cols, [&](int64_t first, int64_t count, int) {
      for (int64_t row = first; row < first + count; ++row) {
        const T* from = static_cast<const T*>(x.data) + row * x.stride;
        for (int64_t i = 0; i < x.cols; ++i) {
          float value;
          if constexpr (std::is_same_v<T, float>) {
            value = from[i];
          } else {
            value = engine::Bf16ToFloat(from[i]);
          }
          const int64_t at = row * x.cols + i;
          const float s = engine::SigmoidOf(gate[at]);
          const bool silu = form == engine::GateForm::kSilu;
          dx[at] += dy[at] * (silu ? s * gate[at] : s);
          dgate[at] += dy[at] * value * (silu ? SiluSlope(gate[at]) : s * (1.0f - s));
        }
      }
    });
  });
}

}  // namespace tandem::training
