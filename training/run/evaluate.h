#pragma once

#include <cstdint>
#include <filesystem>

#include "training/spec/spec.h"

namespace tandem::training {

struct Evaluation {
  double loss = 0;  // mean over the predicted tokens
  double perplexity = 0;
  double accuracy = 0;  // share of tokens whose target is the model's likeliest token
  double bits_per_byte = 0;
  int64_t tokens = 0;  // predicted
};

// Evaluates the model at spec.model.load_parameters_path on spec.data.eval. Uses the training
// program's forward pass, whose bits equal serving's. `adapter` is a PEFT directory, or empty.
// Throws the errors of loading, and kInvalidArgument for a text without a token to predict.
Evaluation EvaluateModel(const TrainSpec& spec, const std::filesystem::path& adapter,
                         const std::filesystem::path& cache_dir);

}  // namespace tandem::training
