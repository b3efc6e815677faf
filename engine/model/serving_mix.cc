#include <array>

#include "engine/model/serving_ops.h"
#include "engine/ops/row_mix.h"

namespace tandem::engine {

Act ServingOps::ScaleExperts(Act routing, const Weight& scales) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::ScaleExperts(ops_, F32(routing), scales.vector, At(out));
  return out;
}

Act ServingOps::Mix(std::span<const Act> xs, Act weights, int64_t first, float offset) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  std::array<const float*, kMaxMixed> streams{};
  for (size_t i = 0; i < xs.size(); ++i) streams[i] = F32(xs[i]);
  MixRows(ops_, std::span(streams).first(xs.size()), F32(weights), At(weights).stride, first,
          offset, At(out));
  return out;
}

Act ServingOps::MatchMagnitude(Act x, Act like, float least_square) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::MatchMagnitude(ops_, F32(x), F32(like), least_square, At(out));
  return out;
}

Act ServingOps::AboveCut(Act x, float deviations) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::AboveCut(ops_, F32(x), deviations, At(out));
  return out;
}

Act ServingOps::ScaleColumns(Act x, const Weight& w) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  engine::ScaleColumns(ops_, F32(x), w.vector, At(out));
  return out;
}

Act ServingOps::SoftCap(Act x, float cap) {
  const Act out = NextAct();
  if (rows_ == 0) return out;
  const Matrix y = At(out);
  SoftCapRows(ops_, F32(x), cap, rows_ * y.stride, static_cast<float*>(y.data));
  return out;
}

}  // namespace tandem::engine
