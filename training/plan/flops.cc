#include "training/plan/flops.h"

#include <algorithm>

namespace tandem::training {

double TflopPerStep(const engine::ModelConfig& config, bool gated, int64_t rows,
                    int64_t row_length) {
  const engine::AttentionSpec& a = config.attention;
  const auto b = static_cast<double>(rows);
  const auto s = static_cast<double>(row_length);
  const double tokens = b * s;
  const auto hidden = static_cast<double>(config.hidden_dim);
  const auto ffn_dim = static_cast<double>(config.ffn_dim);
  const auto head_dim = static_cast<double>(a.head_dim);
  const auto heads = static_cast<double>(a.n_heads);
  const auto kv_heads = static_cast<double>(a.n_kv_heads);

  const double ffn =
      2 * tokens * hidden * ffn_dim * (gated ? 2 : 1) + 2 * tokens * ffn_dim * hidden;
  const double qkv = 2 * tokens * hidden * (heads + 2 * kv_heads) * head_dim;
  const double projection = 2 * tokens * hidden * heads * head_dim;
  const double unembed = 2 * tokens * hidden * static_cast<double>(config.vocab_size);
  double attention = 0;  // of all layers
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t window = config.LayerAttention(layer).window;
    const auto w = static_cast<double>(window > 0 ? std::min(window, row_length) : row_length);
    attention += 4 * b * (s * w - w * w / 2) * heads * head_dim;
  }
  const auto layers = static_cast<double>(config.n_layers);
  return 3 * (layers * (ffn + qkv + projection) + attention + unembed) / 1e12;
}

}  // namespace tandem::training
