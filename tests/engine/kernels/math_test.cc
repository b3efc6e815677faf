// The elementary functions of math.inc, included like any group of kernels
// (engine/kernels/README.md), compared with f64 arithmetic.
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/kernels/cpu_features.h"
#include "engine/kernels/kernels.h"

// False alarms of g++ 12 in its intrinsics headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace tandem::engine {
namespace {

// Functions of sixteen values, in place.
struct MathFunctions {
  std::string name;
  void (*exp)(float*);
  void (*log)(float*);
  void (*tanh)(float*);
  void (*sigmoid)(float*);
  float (*sum)(const float*);
};

}  // namespace
}  // namespace tandem::engine

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace tandem::engine::avx2 {
namespace {
// clang-format off
#include "engine/kernels/avx2/vec.inc"
#include "engine/kernels/math.inc"
#include "tests/engine/kernels/math_functions.inc"
// clang-format on
}  // namespace
}  // namespace tandem::engine::avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace tandem::engine::avx512 {
namespace {
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/math.inc"
#include "tests/engine/kernels/math_functions.inc"
// clang-format on
}  // namespace
}  // namespace tandem::engine::avx512
#pragma GCC pop_options
#else
namespace tandem::engine::neon {
namespace {
// clang-format off
#include "engine/kernels/neon/vec.inc"
#include "engine/kernels/math.inc"
#include "tests/engine/kernels/math_functions.inc"
// clang-format on
}  // namespace
}  // namespace tandem::engine::neon
#endif

namespace tandem::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<MathFunctions> Runnable() {
  const CpuFeatures cpu = DetectCpuFeatures();
  std::vector<MathFunctions> all;
#if defined(__x86_64__)
  if (cpu.avx2) all.push_back(avx2::Functions("avx2"));
  if (cpu.avx512) all.push_back(avx512::Functions("avx512"));
#else
  if (cpu.neon) all.push_back(neon::Functions("neon"));
#endif
  return all;
}

class MathTest : public testing::TestWithParam<MathFunctions> {};
INSTANTIATE_TEST_SUITE_P(Tables, MathTest, testing::ValuesIn(Runnable()),
                         [](const auto& test_case) { return test_case.param.name; });
// A CPU without AVX2 has no table to test.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MathTest);

// Distance in units of the last place of the exact value (subnormals: of the smallest).
double Ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent, -125) - 24);
  return std::abs(double{got} - exact) / ulp;
}

// The worst error over floats of one sign in [lo, hi], `step` bit patterns apart.
double WorstUlps(void (*f)(float*), double (*exact)(double), float lo, float hi, uint32_t step) {
  double worst = 0;
  float lanes[16];
  const uint32_t end = std::bit_cast<uint32_t>(hi);
  for (uint32_t bits = std::bit_cast<uint32_t>(lo); bits <= end; bits += 16 * step) {
    float x[16];
    for (uint32_t i = 0; i < 16; ++i) lanes[i] = x[i] = std::bit_cast<float>(bits + i * step);
    f(lanes);
    for (uint32_t i = 0; i < 16; ++i) {
      if (std::abs(x[i]) > std::abs(hi)) continue;
      worst = std::max(worst, Ulps(lanes[i], exact(x[i])));
    }
  }
  return worst;
}

float One(void (*f)(float*), float x) {
  float lanes[16];
  std::fill_n(lanes, 16, 1.0f);
  lanes[5] = x;
  f(lanes);
  return lanes[5];
}

double ExactSigmoid(double x) { return 1 / (1 + std::exp(-x)); }

constexpr uint32_t kStep = 397;  // a prime: about ten million floats in all

TEST_P(MathTest, ExpIsWithinOneUlp) {
  EXPECT_LE(WorstUlps(GetParam().exp, std::exp, 0.0f, 88.7f, kStep), 1.0);
  EXPECT_LE(WorstUlps(GetParam().exp, std::exp, -0.0f, -87.3f, kStep), 1.0);
  // Subnormal results round once.
  EXPECT_LE(WorstUlps(GetParam().exp, std::exp, -87.3f, -103.9f, 11), 1.0);
}

TEST_P(MathTest, ExpOfExtremes) {
  const auto exp = GetParam().exp;
  EXPECT_EQ(One(exp, -kInfinity), 0.0f);
  EXPECT_EQ(One(exp, -104.0f), 0.0f);
  EXPECT_EQ(One(exp, 0.0f), 1.0f);
  EXPECT_EQ(One(exp, 88.8f), kInfinity);
  EXPECT_EQ(One(exp, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(One(exp, kNan)));
}

TEST_P(MathTest, LogIsWithinTwoUlps) {
  EXPECT_LE(WorstUlps(GetParam().log, std::log, 1.18e-38f, 3.4e38f, kStep), 2.0);
  EXPECT_LE(WorstUlps(GetParam().log, std::log, 0.5f, 2.0f, 7), 2.0);
}

TEST_P(MathTest, LogOfExtremes) {
  const auto log = GetParam().log;
  EXPECT_EQ(One(log, 1.0f), 0.0f);
  EXPECT_EQ(One(log, 0.0f), -kInfinity);
  EXPECT_EQ(One(log, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(One(log, -1.0f)));
  EXPECT_TRUE(std::isnan(One(log, kNan)));
}

TEST_P(MathTest, TanhIsWithinTwoUlps) {
  EXPECT_LE(WorstUlps(GetParam().tanh, std::tanh, 1e-30f, 30.0f, kStep), 2.0);
  EXPECT_LE(WorstUlps(GetParam().tanh, std::tanh, -1e-30f, -30.0f, kStep), 2.0);
  EXPECT_EQ(One(GetParam().tanh, kInfinity), 1.0f);
  EXPECT_EQ(One(GetParam().tanh, -kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(One(GetParam().tanh, kNan)));
}

TEST_P(MathTest, SigmoidIsWithinThreeUlps) {
  EXPECT_LE(WorstUlps(GetParam().sigmoid, ExactSigmoid, 1e-30f, 30.0f, kStep), 3.0);
  EXPECT_LE(WorstUlps(GetParam().sigmoid, ExactSigmoid, -1e-30f, -87.0f, kStep), 3.0);
  EXPECT_EQ(One(GetParam().sigmoid, -200.0f), 0.0f);
  EXPECT_EQ(One(GetParam().sigmoid, 200.0f), 1.0f);
}

TEST_P(MathTest, SumOfLanesIsTheFixedTree) {
  float x[16];
  for (int i = 0; i < 16; ++i) x[i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i), 3 * (i % 5));
  float tree[16];
  std::copy_n(x, 16, tree);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) tree[i] += tree[i + half];
  }
  EXPECT_EQ(GetParam().sum(x), tree[0]);
}

}  // namespace
}  // namespace tandem::engine
