#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"
#include "training/run/run.h"

namespace tandem::training {

// Whole runs of a tiny model in a temporary directory, about a second each. base/ has the model,
// train.txt has the text, and each run has its own folder.
class TinyRunTest : public testing::Test {
 protected:
  explicit TinyRunTest(bench::RandomModelSpec model = TinyLlama()) {
    bench::WriteRandomModel(model, dir_.path() / "base");
    std::ofstream text(dir_.path() / "train.txt");
    for (int i = 0; i < 40; ++i) {
      text << "The " << (i % 2 != 0 ? "dog" : "cat") << " number " << i
           << " ran to the river and back.\n<|endoftext|>\n";
    }
  }

  static bench::RandomModelSpec TinyLlama() {
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    model.with_tokenizer = true;
    return model;
  }

  TrainOutcome Run(const TrainSpec& spec, const std::string& name = "run",
                   std::function<void(const ProgressEvent&)> watch = {}) {
    JobContext context;
    context.dir = dir_.path() / name;
    context.cache_dir = cache_dir_;
    context.stop = stop_.get_token();
    context.report = [&, watch](const ProgressEvent& event) {
      events_.push_back(event);
      if (watch) watch(event);
    };
    return RunTraining(spec, context);
  }

  // Stops the run during this step, so that it can be resumed.
  TrainOutcome RunUntil(const TrainSpec& spec, const std::string& name, int64_t step) {
    const TrainOutcome outcome = Run(spec, name, [&](const ProgressEvent& event) {
      if (event.kind == std::string("step") && event.step == step) stop_.request_stop();
    });
    stop_ = std::stop_source();
    return outcome;
  }

  std::vector<nlohmann::json> Metrics(const std::string& name = "run") const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(dir_.path() / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  // The last recorded loss of each step.
  std::map<int64_t, double> Losses(const std::string& name = "run") const {
    std::map<int64_t, double> losses;
    for (const auto& line : Metrics(name)) {
      const auto loss = line.find("learning/loss");
      if (loss != line.end() && loss->is_number()) losses[line["step"]] = *loss;
    }
    return losses;
  }

  std::string Weights(const std::string& name = "run") const {
    return engine::ReadWholeFile(dir_.path() / name / "hf" / "model.safetensors", 1 << 28);
  }

  int CountEvents(const std::string& kind, const std::string& part) const {
    int count = 0;
    for (const ProgressEvent& event : events_) {
      if (event.kind == kind && event.message.find(part) != std::string::npos) ++count;
    }
    return count;
  }

  static constexpr TokenId kPoison = '~';  // of the byte tokenizer

  // A copy of the base in which the poison's embedding is NaN.
  std::string Poisoned() {
    const std::filesystem::path dir = dir_.path() / "poisoned";
    std::filesystem::copy(dir_.path() / "base", dir);
    const std::filesystem::path weights = dir / "model.safetensors";
    const auto file = engine::SafetensorsFile::Open(weights);
    std::vector<engine::NamedTensor> tensors;
    std::vector<std::byte> embedding;
    for (const std::string& name : file.names()) {
      engine::ConstTensorView view = *file.Find(name);
      if (name == "model.embed_tokens.weight") {
        embedding.assign(view.data, view.data + view.bytes());
        const size_t width = view.bytes() / static_cast<size_t>(view.shape[0]);
        std::fill_n(embedding.begin() + static_cast<ptrdiff_t>(kPoison * width), width,
                    std::byte{0xff});  // NaN in every float format
        view.data = embedding.data();
      }
      tensors.push_back({name, view});
    }
    engine::WriteSafetensors(dir_.path() / "w", tensors, {{"format", "pt"}});
    std::filesystem::rename(dir_.path() / "w", weights);
    return "load_parameters_path=" + dir.string();
  }

  tests::TemporaryDir dir_;
  std::filesystem::path cache_dir_;
  std::stop_source stop_;
  std::vector<ProgressEvent> events_;
};

}  // namespace tandem::training
