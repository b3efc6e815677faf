#include "server/cli/fairness_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "bench/fairness_bench.h"
#include "bench/states_bench.h"
#include "server/cli/model_options.h"

namespace tandem::server {

void AddFairnessBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::FairnessBenchOptions>();
  auto flags = std::make_shared<ModelFlags>();
  command.add_option("--model", options->model, "Hugging Face directory or GGUF file")->required();
  AddModelFlags(command, *flags);
  command.add_option("--pairs", options->pairs, "pairs of runs; medians and ranges are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--requests", options->requests, "interactive requests of each run")
      ->check(CLI::Range(10, 100000))
      ->capture_default_str();
  command
      .add_option("--load", options->load,
                  "interactive requests in flight on average, if each ran alone")
      ->check(CLI::Range(0.01, 10.0))
      ->capture_default_str();
  command.add_option("--batch-streams", options->batch_streams, "batch requests in flight")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--batch-prompt-tokens", options->batch_prompt_tokens,
                  "tokens of a batch prompt; a quarter as many are generated")
      ->check(CLI::Range(4, 65536))
      ->capture_default_str();
  command
      .add_option("--short-tokens", options->short_tokens,
                  "tokens of a short prompt; interactive prompts have half to twice as many")
      ->check(CLI::Range(2, 8192))
      ->capture_default_str();
  command.add_option("--long-tokens", options->long_tokens, "tokens of the long prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "of prompts and arrivals")->capture_default_str();
  command.callback([options, flags, &exit_code] {
    options->engine = ToEngineOptions(*flags);
    exit_code = bench::RunFairnessBench(std::cout, *options);
  });
}

void AddStatesBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::StatesBenchOptions>();
  auto flags = std::make_shared<ModelFlags>();
  command.add_option("--model", options->model, "Hugging Face directory or GGUF file")->required();
  AddModelFlags(command, *flags);
  command.add_option("--pairs", options->pairs, "pairs of runs; medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--streams", options->streams, "requests that decode together")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--prompt-tokens", options->prompt_tokens, "tokens of their prompts")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--output-tokens", options->output_tokens, "tokens of their answers")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--shared-tokens", options->shared_tokens,
                  "tokens with which several prompts begin")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "of the prompts")->capture_default_str();
  command.callback([options, flags, &exit_code] {
    options->engine = ToEngineOptions(*flags);
    exit_code = bench::RunStatesBench(std::cout, *options);
  });
}

}  // namespace tandem::server
