#include "training/ops/expert_lora.h"

#include <array>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

using engine::DType;

constexpr int64_t kAdaptedRows = 10;
constexpr int64_t kAdaptedTopK = 2;
constexpr int64_t kAdaptedExperts = 4;
constexpr int64_t kOut = 9;
constexpr int64_t kIn = 6;
constexpr int64_t kRank = 3;
constexpr float kScale = 1.5f;

// Experts 0, 1 and 3 have adapters; a row's slots are two neighbours.
struct AdapterCase {
  bool shared;
  Floats routing;
  Floats x;
  Floats a = RandomFloats(kAdaptedExperts * kRank * kIn, 2);
  Floats b = RandomFloats(kAdaptedExperts * kOut * kRank, 3);
  Floats dy = RandomFloats(kAdaptedRows * kAdaptedTopK * kOut, 4);

  explicit AdapterCase(bool one_input)
      : shared(one_input), x(RandomFloats(kAdaptedRows * (one_input ? 1 : 2) * kIn, 1)) {
    for (int64_t r = 0; r < kAdaptedRows; ++r) {
      routing.insert(routing.end(), {static_cast<float>(r % kAdaptedExperts),
                                     static_cast<float>((r + 1) % kAdaptedExperts), 1, 1});
    }
  }

  int64_t Expert(int64_t row, int64_t slot) const {
    return static_cast<int64_t>(routing[static_cast<size_t>(row * 4 + slot)]);
  }
  int64_t input_cols() const { return shared ? kIn : kAdaptedTopK * kIn; }

  double Loss(const Doubles& x_at, const Doubles& a_at, const Doubles& b_at) const {
    double loss = 0;
    for (int64_t r = 0; r < kAdaptedRows; ++r) {
      for (int64_t s = 0; s < kAdaptedTopK; ++s) {
        const int64_t e = Expert(r, s);
        if (e == 2) continue;
        const double* in = x_at.data() + r * input_cols() + (shared ? 0 : s * kIn);
        for (int64_t j = 0; j < kRank; ++j) {
          double h = 0;
          for (int64_t i = 0; i < kIn; ++i) {
            h += in[i] * a_at[static_cast<size_t>((e * kRank + j) * kIn + i)];
          }
          for (int64_t o = 0; o < kOut; ++o) {
            loss += kScale * h * b_at[static_cast<size_t>((e * kOut + o) * kRank + j)] *
                    static_cast<double>(dy[static_cast<size_t>((r * kAdaptedTopK + s) * kOut + o)]);
          }
        }
      }
    }
    return loss;
  }
};

// The adapters and the rounded inputs of a case, packed.
struct PackedCase {
  AlignedBuffer x, panels, hidden;
  engine::Matrix input, h;
  std::array<engine::LoraMatrices, kAdaptedExperts> lora;

  PackedCase(engine::OpsContext& ops, const AdapterCase& c, DType dtype) {
    const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
    const auto matrix = [&](AlignedBuffer& buffer, int64_t rows, int64_t cols) {
      const int64_t stride = engine::RowStride(dtype, cols);
      buffer = AlignedBuffer(static_cast<size_t>(rows * stride * width));
      return engine::Matrix{buffer.data(), dtype, rows, cols, stride};
    };
    input = matrix(x, kAdaptedRows, c.input_cols());
    engine::RoundRows(ops, c.x.data(), c.input_cols(), input);
    h = matrix(hidden, kAdaptedRows * kAdaptedTopK, kRank);
    const int64_t a_bytes = engine::PanelBytes(dtype, kRank, kIn);
    const int64_t bytes = a_bytes + engine::PanelBytes(dtype, kOut, kRank);
    panels = AlignedBuffer(static_cast<size_t>(kAdaptedExperts * bytes));
    for (int64_t e = 0; e < kAdaptedExperts; ++e) {
      if (e == 2) continue;
      const auto pack = [&](const float* from, int64_t n, int64_t k, std::byte* to) {
        engine::PackPanels(ops, {reinterpret_cast<const std::byte*>(from), DType::kF32, {n, k}},
                           engine::SourceLayout::kOutIn, n, k, dtype, to);
        return engine::PanelMatrix{to, dtype, n, k};
      };
      std::byte* own = panels.data() + e * bytes;
      lora[static_cast<size_t>(e)] = {
          pack(c.a.data() + e * kRank * kIn, kRank, kIn, own),
          pack(c.b.data() + e * kOut * kRank, kOut, kRank, own + a_bytes), kScale};
    }
  }

  const engine::LoraMatrices* Find(int64_t expert) const {
    return expert == 2 ? nullptr : &lora[static_cast<size_t>(expert)];
  }
};

engine::ConstMatrix RoutingOf(const AdapterCase& c) {
  return {c.routing.data(), DType::kF32, kAdaptedRows, 2 * kAdaptedTopK, 2 * kAdaptedTopK};
}

Floats RunForward(engine::OpsContext& ops, const AdapterCase& c, PackedCase& packed) {
  Floats y = RandomFloats(kAdaptedRows * kAdaptedTopK * kOut, 5);
  engine::AddExpertLora(
      ops, packed.input, RoutingOf(c), kAdaptedExperts, [&](int64_t e) { return packed.Find(e); },
      0, kAdaptedRows, y.data(), kAdaptedTopK * kOut, &packed.h);
  return y;
}

TEST(ExpertLora, ASlotHasTheBitsOfItsExpertsAdapterOnThatRowAlone) {
  for (const bool shared : {true, false}) {
    const AdapterCase c(shared);
    OnEveryTable([&](engine::OpsContext& ops) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        PackedCase packed(ops, c, dtype);
        const Floats y = RunForward(ops, c, packed);
        Floats want = RandomFloats(kAdaptedRows * kAdaptedTopK * kOut, 5);
        const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
        for (int64_t r = 0; r < kAdaptedRows; ++r) {
          for (int64_t s = 0; s < kAdaptedTopK; ++s) {
            const engine::LoraMatrices* lora = packed.Find(c.Expert(r, s));
            if (lora == nullptr) continue;
            const int64_t at = r * packed.input.stride + (shared ? 0 : s * kIn);
            const engine::ConstMatrix row{packed.x.data() + at * width, dtype, 1, kIn,
                                          engine::RowStride(dtype, kIn)};
            const engine::LoraRows all{lora, 0, 1};
            engine::AddLora(ops, row, {&all, 1}, want.data() + (r * kAdaptedTopK + s) * kOut, kOut,
                            nullptr);
          }
        }

        EXPECT_EQ(y, want);
      }
    });
  }
}

TEST(ExpertLora, GradientsAgreeWithFiniteDifferences) {
  for (const bool shared : {true, false}) {
    const AdapterCase c(shared);
    const Doubles x = Widen(c.x);
    const Doubles a = Widen(c.a);
    const Doubles b = Widen(c.b);
    const Doubles dx = NumericGradient([&](const Doubles& at) { return c.Loss(at, a, b); }, x);
    const Doubles da = NumericGradient([&](const Doubles& at) { return c.Loss(x, at, b); }, a);
    const Doubles db = NumericGradient([&](const Doubles& at) { return c.Loss(x, a, at); }, b);

    OnEveryTable([&](engine::OpsContext& ops) {
      for (const auto& [dtype, most] : {std::pair{DType::kF32, 1e-5}, {DType::kBF16, 2e-2}}) {
        PackedCase packed(ops, c, dtype);
        RunForward(ops, c, packed);
        Floats got_dx(c.x.size()), got_da(c.a.size()), got_db(c.b.size());
        ExpertLoraGradient gradient;
        gradient.x = packed.input;
        gradient.routing = RoutingOf(c);
        gradient.hidden = packed.h;
        gradient.n_experts = kAdaptedExperts;
        gradient.n = kOut;
        gradient.k = kIn;
        gradient.dy = c.dy.data();
        gradient.lora = [&](int64_t e) { return packed.Find(e); };
        gradient.da = [&](int64_t e) { return got_da.data() + e * kRank * kIn; };
        gradient.db = [&](int64_t e) { return got_db.data() + e * kOut * kRank; };
        gradient.dx = got_dx.data();
        AlignedBuffer scratch(static_cast<size_t>(ExpertLoraGradientScratch(
            dtype, kAdaptedRows, kAdaptedTopK, kAdaptedExperts, kOut, kIn, kRank)));
        ExpertLoraBackward(ops, gradient, kRank, scratch.data());

        EXPECT_LT(RelativeError(got_dx, dx), most);
        EXPECT_LT(RelativeError(got_da, da), most);
        EXPECT_LT(RelativeError(got_db, db), most);
      }
    });
  }
}

}  // namespace
}  // namespace tandem::training
