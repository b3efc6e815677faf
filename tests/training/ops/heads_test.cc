#include "training/ops/heads.h"

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

// The gradient of a copy is where the copied numbers came from: y . dy = x . dx for every x.
TEST(HeadsBackward, SlicesReturnTheirGradientToTheirPlace) {
  constexpr int64_t kRows = 4, kHeads = 3, kDim = 5, kFirst = 2, kCount = 3;
  const Floats dy = RandomFloats(kRows * kHeads * kCount, 1);
  OnEveryTable([&](engine::OpsContext& ops) {
    Floats dx(kRows * kHeads * kDim, 0.5f);
    SliceHeadsBackward(ops, dy.data(), kRows, kHeads, kDim, kFirst, kCount, dx.data());
    for (int64_t head = 0; head < kRows * kHeads; ++head) {
      for (int64_t i = 0; i < kDim; ++i) {
        const float added = i >= kFirst ? dy[head * kCount + i - kFirst] : 0;
        EXPECT_EQ(dx[head * kDim + i], 0.5f + added);
      }
    }
  });
}

TEST(HeadsBackward, ASharedHeadGetsTheSumOverTheHeads) {
  const Floats dy = {1, 2, 3, 4, 5, 6, 7, 8};  // 2 rows of 2 heads of 1 + 1
  OnEveryTable([&](engine::OpsContext& ops) {
    Floats da(4), db(2), own(4);
    JoinHeadsBackward(ops, dy.data(), 2, 1, 1, 1, 2, da.data(), db.data());
    EXPECT_EQ(da, (Floats{1, 3, 5, 7}));
    EXPECT_EQ(db, (Floats{2 + 4, 6 + 8}));
    JoinHeadsBackward(ops, dy.data(), 2, 1, 1, 2, 2, da.data(), own.data());
    EXPECT_EQ(own, (Floats{2, 4, 6, 8}));
  });
}

}  // namespace
}  // namespace tandem::training
