#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "training/loss/tandem_loss.h"

namespace tandem::training {

// A loss that a library computes (tandem_loss.h). Owned by a run; one thread at a time.
class LossLibrary {
 public:
  // Loads the library. Throws kNotFound when the file is missing, kUnsupported when this program or
  // the library cannot be used, and kInvalidArgument with the library's own words when it refuses
  // the options. Messages name train.loss_library and the path.
  static std::shared_ptr<LossLibrary> Open(const std::filesystem::path& path,
                                           const std::string& options);
  ~LossLibrary();
  LossLibrary(const LossLibrary&) = delete;
  LossLibrary& operator=(const LossLibrary&) = delete;

  // Returns the sum of the tokens' losses and fills `gradients` [n_tokens]. Throws kInternal with
  // the library's words when it fails.
  double Compute(const TandemLossBatch& batch, std::span<float> gradients);

 private:
  LossLibrary(std::string name, const TandemLossFunctions& functions, void* loss)
      : name_(std::move(name)), functions_(functions), loss_(loss) {}

  const std::string name_;
  const TandemLossFunctions& functions_;
  void* const loss_;
};

}  // namespace tandem::training
