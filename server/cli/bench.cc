#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "bench/gemm_bench.h"
#include "bench/make_model.h"
#include "bench/step_bench.h"
#include "bench/train_bench.h"
#include "server/cli/model_options.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

void AddGemmBench(CLI::App& command, int& exit_code, bool roof_only) {
  auto options = std::make_shared<bench::GemmBenchOptions>();
  command.add_option("--threads", options->threads, "compute workers (0: physical cores)");
  command.add_option("--seconds", options->seconds, "per case")->check(CLI::Range(0.05, 60.0));
  command.callback([options, &exit_code, roof_only] {
    exit_code = roof_only ? bench::RunRoofBench(std::cout, *options)
                          : bench::RunGemmBench(std::cout, *options);
  });
}

void AddStepBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::StepBenchOptions>();
  command.add_option("--model", options->model,
                     "Hugging Face directory (default: random weights, Llama-3.2-1B shape)");
  command.add_option("--threads", options->threads, "compute workers (0: physical cores)");
  command.add_option("--rounds", options->rounds, "medians are taken over these")
      ->check(CLI::Range(1, 100));
  command.add_option("--prompt-tokens", options->prompt_tokens, "prefill")
      ->check(CLI::Range(16, 8192));
  command.add_option("--batch", options->batch, "sequences decoded together")
      ->check(CLI::Range(2, 256));
  command.callback([options, &exit_code] {
    options->cache_dir = ToEngineOptions(ModelFlags{}).cache_dir;
    exit_code = bench::RunStepBench(std::cout, *options);
  });
}

void AddTrainBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::TrainBenchOptions>();
  command.add_option("--family", options->family, "minigpt or llama");
  command.add_option("--layers", options->n_layers, "blocks")->check(CLI::Range(1, 128));
  command.add_option("--width", options->hidden_dim, "hidden size")->check(CLI::Range(16, 8192));
  command.add_option("--ffn", options->ffn_dim, "feed-forward size")->check(CLI::Range(16, 32768));
  command.add_option("--heads", options->n_heads, "attention heads")->check(CLI::Range(1, 128));
  command.add_option("--vocab", options->vocab_size, "vocabulary")->check(CLI::Range(16, 300000));
  command.add_option("--context", options->context, "tokens per row")->check(CLI::Range(16, 8192));
  command.add_option("--batch", options->batch, "rows per step")->check(CLI::Range(1, 1024));
  command.add_flag("--bf16,!--f32", options->bf16, "compute in bf16 (default) or f32");
  command.add_option("--threads", options->threads, "compute workers (0: physical cores)");
  command.add_option("--rounds", options->rounds, "pairs")->check(CLI::Range(1, 100));
  command.add_option("--steps", options->steps, "steps per round")->check(CLI::Range(1, 100));
  command.add_option("--peer", options->peer,
                     "shell command that trains the same and prints 'N tokens/s'; alternates");
  command.callback(
      [options, &exit_code] { exit_code = bench::RunTrainBench(std::cout, *options); });
}

void AddMakeModel(CLI::App& command, int&) {
  struct Flags {
    std::string shape;
    std::string dir;
  };
  const auto flags = std::make_shared<Flags>();
  std::vector<std::string> names;
  std::string help = "one of";
  for (const bench::ModelShape& shape : bench::ModelShapes()) {
    names.emplace_back(shape.name);
    help += std::string("\n  ") + shape.name + ": " + shape.description;
  }
  command.add_option("shape", flags->shape, help)->required()->check(CLI::IsMember(names));
  command.add_option("dir", flags->dir, "directory to write; must not exist")->required();
  command.callback([flags] {
    bench::MakeModel(flags->shape, flags->dir);
    std::cout << "wrote " << flags->dir << "\n";
  });
}

}  // namespace

void AddBench(CLI::App& command, int& exit_code) {
  command.require_subcommand(1);
  AddGemmBench(
      *command.add_subcommand("roof", "peak arithmetic and read bandwidth of this machine"),
      exit_code, true);
  AddGemmBench(*command.add_subcommand("gemm", "matrix kernels against the roof"), exit_code,
               false);
  AddStepBench(*command.add_subcommand("step", "prefill, one stream and a batch against the roof"),
               exit_code);
  AddTrainBench(*command.add_subcommand("train", "training steps, optionally beside a peer"),
                exit_code);
  AddMakeModel(*command.add_subcommand("make-model", "write a model of random weights to measure"),
               exit_code);
}

}  // namespace tandem::server
