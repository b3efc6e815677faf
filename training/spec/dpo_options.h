#pragma once

namespace tandem::training {

struct DpoOptions {
  double beta = 0.1;           // how dear it is to leave the reference
  double label_smoothing = 0;  // share of pairs whose preference is held for wrong
};

}  // namespace tandem::training
