#pragma once

namespace tandem::training {

struct DpoOptions {
  double beta = 0.1;           // weight of the pull towards the reference
  double label_smoothing = 0;  // assumed share of pairs with the wrong preference
};

}  // namespace tandem::training
