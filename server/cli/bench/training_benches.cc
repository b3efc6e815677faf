#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "bench/head_bench.h"
#include "bench/mlp_bench.h"
#include "bench/optimizer_bench.h"
#include "bench/train_bench.h"
#include "server/cli/bench/bench_verbs.h"
#include "server/cli/model_options.h"
#include "server/models/load_model.h"

namespace tandem::server {

void AddOptimizerBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::OptimizerBenchOptions>();
  command.add_option("--elements", options->elements, "elements of the tensor")
      ->check(CLI::Range(1 << 16, 1 << 30))
      ->capture_default_str();
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--steps", options->steps, "steps per round")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.callback(
      [options, &exit_code] { exit_code = bench::RunOptimizerBench(std::cout, *options); });
}

void AddMlpBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::MlpBenchOptions>();
  constexpr int64_t kMost = 1 << 24;
  const auto count = [&](const char* name, int64_t& value, const char* what) {
    command.add_option(name, value, what)
        ->check(CLI::Range(int64_t{1}, kMost))
        ->capture_default_str();
  };
  count("--d", options->d, "width");
  count("--ff", options->ff, "feed-forward width");
  count("--seq", options->seq, "tokens per sequence");
  count("--batch", options->batch, "sequences per step");
  count("--chunk", options->chunk, "tokens per chunk, a multiple of 1024");
  count("--steps", options->steps, "measured rounds; the medians are reported");
  command
      .add_option_function<std::string>(
          "--dtype",
          [options](const std::string& name) {
            options->dtype = name == "f32" ? engine::DType::kF32 : engine::DType::kBF16;
          },
          "type of the matrix products: bf16 (default) or f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command
      .add_option_function<std::string>(
          "--save",
          [options](const std::string& name) {
            options->save = name == "plain"       ? bench::MlpSave::kPlain
                            : name == "recompute" ? bench::MlpSave::kRecompute
                                                  : bench::MlpSave::kMask1;
          },
          "what ReLU saves for its gradient: plain (its f32 input), mask1 (one bit, default) or "
          "recompute")
      ->check(CLI::IsMember({"plain", "mask1", "recompute"}));
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.callback([options, &exit_code] { exit_code = bench::RunMlpBench(std::cout, *options); });
}

void AddHeadBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::HeadBenchOptions>();
  command.add_option("--vocab", options->vocab, "vocabulary size in tokens")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();
  command.add_option("--dim", options->dim, "width of the model")
      ->check(CLI::Range(16, 1 << 16))
      ->capture_default_str();
  command.add_option("--rows", options->rows, "trained tokens per micro-batch")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.callback([options, &exit_code] { exit_code = bench::RunHeadBench(std::cout, *options); });
}

void AddTrainBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::TrainBenchOptions>();
  command.add_option("--family", options->family, bench::TrainBenchOptions::kFamilies);
  command.add_option(
      "--model", options->model,
      "Hugging Face directory to train (default: random weights of the shape below)");
  command
      .add_option("--lora-rank", options->lora_rank,
                  "train adapters of this rank on all linear layers of --model")
      ->check(CLI::Range(1, 1024))
      ->needs("--model");
  command.add_option("--layers", options->n_layers, "transformer blocks")
      ->check(CLI::Range(1, 128));
  command.add_option("--width", options->hidden_dim, "hidden size")->check(CLI::Range(16, 8192));
  command.add_option("--ffn", options->ffn_dim, "feed-forward size")->check(CLI::Range(16, 32768));
  command.add_option("--heads", options->n_heads, "attention heads")->check(CLI::Range(1, 128));
  command.add_option("--vocab", options->vocab_size, "vocabulary size in tokens")
      ->check(CLI::Range(16, 300000));
  command.add_option("--context", options->context, "tokens per row")
      ->check(CLI::Range(16, 131072));
  command.add_option("--batch", options->batch, "rows per step")->check(CLI::Range(1, 1024));
  command.add_flag("--bf16,!--f32", options->bf16, "compute in bf16 (default) or f32");
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds, alternating with --peer")
      ->check(CLI::Range(1, 100));
  command.add_option("--steps", options->steps, "steps per round")->check(CLI::Range(1, 100));
  command.add_option(
      "--peer", options->peer,
      "shell command that trains the same model and prints 'N tokens/s'; rounds alternate with it");
  command.callback([options, &exit_code] {
    options->cache_dir = ToEngineOptions(ModelFlags{}).cache_dir;
    exit_code = bench::RunTrainBench(std::cout, *options);
  });
}

}  // namespace tandem::server
