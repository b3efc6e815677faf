#include <CLI/CLI.hpp>
#include <cstddef>
#include <iostream>
#include <memory>
#include <string>

#include "bench/constrain_bench.h"
#include "bench/context_bench.h"
#include "bench/cores/cores_bench.h"
#include "bench/fairness_bench.h"
#include "bench/states_bench.h"
#include "bench/step_bench.h"
#include "engine/io/atomic_write.h"
#include "server/cli/bench/bench_verbs.h"
#include "server/cli/model_options.h"
#include "server/models/load_model.h"

namespace tandem::server {

void AddStepBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::StepBenchOptions>();
  auto dtype = std::make_shared<std::string>("auto");
  command.add_option("--dtype", *dtype, "weight type: auto (the checkpoint's), int8 or int4")
      ->check(CLI::IsMember({"auto", "int8", "int4"}))
      ->capture_default_str();
  command.add_option("--model", options->model,
                     std::string("Hugging Face directory (default: random weights, ") +
                         bench::StepBenchOptions::kRandomShape + " shape)");
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100));
  command.add_option("--prompt-tokens", options->prompt_tokens, "tokens of the prefilled prompt")
      ->check(CLI::Range(16, 8192));
  command.add_option("--batch", options->batch, "sequences decoded together")
      ->check(CLI::Range(2, 256));
  command
      .add_option("--adapters", options->adapters,
                  "LoRA adapters that the batch uses in turn (0: none)")
      ->check(CLI::Range(0, 256));
  command.add_option("--adapter-rank", options->adapter_rank, "rank of these adapters")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command.callback([options, dtype, &exit_code] {
    engine::EngineOptions of_dtype;
    SetDType(*dtype, of_dtype);
    options->block = of_dtype.block;
    options->cache_dir = ToEngineOptions(ModelFlags{}).cache_dir;
    exit_code = bench::RunStepBench(std::cout, *options);
  });
}

void AddCoresBench(CLI::App& command, int& exit_code) {
  struct Flags {
    bench::CoresBenchOptions options;
    std::string dtype = "auto";
    std::string growth = "linear";
    double socket_gbps = 0;
  };
  const auto flags = std::make_shared<Flags>();
  bench::CoresBenchOptions& options = flags->options;
  command.add_option("--model", options.model,
                     std::string("Hugging Face directory (default: random weights, ") +
                         bench::StepBenchOptions::kRandomShape + " shape)");
  command.add_option("--dtype", flags->dtype, "weight type: auto (the checkpoint's), int8 or int4")
      ->check(CLI::IsMember({"auto", "int8", "int4"}))
      ->capture_default_str();
  command
      .add_option("--threads", options.threads,
                  "largest number of threads to measure (0: one per physical core)")
      ->check(CLI::Range(0, 1024));
  command.add_option("--rounds", options.rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--prompt-tokens", options.prompt_tokens, "tokens of the prefilled prompt")
      ->check(CLI::Range(16, 8192))
      ->capture_default_str();
  command.add_option("--batch", options.batch, "sequences decoded together")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  command.add_option("--cores", options.cores, "core counts to simulate")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--socket-gbps", flags->socket_gbps,
                  "GB/s that the memory of a simulated socket delivers (0: from the read loop)")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--remote-slowdown", options.remote_slowdown,
                  "time of a simulated task with weights of the other socket, over local ones")
      ->check(CLI::Range(1.0, 100.0))
      ->capture_default_str();
  command
      .add_option("--barrier-growth", flags->growth,
                  "how the simulated barrier grows with the cores: linear or log")
      ->check(CLI::IsMember({"linear", "log"}))
      ->capture_default_str();
  command.add_option("--json", options.json_file, "file to write all figures to, as JSON");
  command.callback([flags, &exit_code] {
    engine::EngineOptions of_dtype;
    SetDType(flags->dtype, of_dtype);
    flags->options.block = of_dtype.block;
    flags->options.cache_dir = ToEngineOptions(ModelFlags{}).cache_dir;
    flags->options.socket_bytes_per_second = flags->socket_gbps * 1e9;
    if (flags->growth == "log") {
      flags->options.barrier_growth = bench::BarrierGrowth::kLogarithmic;
    }
    exit_code = bench::RunCoresBench(std::cout, flags->options);
  });
}

void AddContextBench(CLI::App& command, int& exit_code) {
  struct Flags {
    bench::ContextBenchOptions options;
    ModelFlags model;
    std::string kv_dtype = "auto";
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("--model,-m", flags->options.model, "directory of the model")
      ->required()
      ->check(CLI::ExistingPath);
  command
      .add_option("--draft-model", flags->options.draft_model,
                  "directory of a smaller model with the same tokens")
      ->check(CLI::ExistingPath);
  command.add_option("--kv-dtype", flags->kv_dtype, "type of keys and values: auto or int8")
      ->check(CLI::IsMember({"auto", "int8"}))
      ->capture_default_str();
  command
      .add_option("--depths", flags->options.depths, "tokens before the decoded ones, ascending")
      ->check(CLI::Range(64, 1 << 20))
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--tokens", flags->options.tokens, "tokens decoded at each depth")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command
      .add_option("--rounds", flags->options.rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  AddModelFlags(command, flags->model);
  command.callback([flags, &exit_code] {
    flags->options.engine = ToEngineOptions(flags->model);
    if (flags->kv_dtype == "int8") flags->options.engine.kv_format = engine::KvFormat::kInt8;
    exit_code = bench::RunContextBench(std::cout, flags->options);
  });
}

void AddConstrainBench(CLI::App& command, int& exit_code) {
  struct Flags {
    std::string tokenizer;
    bench::ConstrainBenchOptions options;
  };
  auto flags = std::make_shared<Flags>();
  bench::ConstrainBenchOptions& options = flags->options;
  command.add_option("--vocab", options.vocab_size, "words of the random model's vocabulary")
      ->check(CLI::Range(257, 1'180'142))
      ->capture_default_str();
  command.add_option("--tokenizer,-t", flags->tokenizer, "a tokenizer.json to use instead")
      ->check(CLI::ExistingFile);
  command.add_option("--layers", options.layers, "layers of the random model")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--width", options.width, "width of its layers, a multiple of 48")
      ->check(CLI::Range(48, 9600))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options.rounds, "measured pairs; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--streams", options.streams, "requests decoded together")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--tokens", options.tokens, "tokens of each request")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command.callback([flags, &exit_code] {
    constexpr size_t kMostTokenizerBytes = size_t{64} << 20;
    if (!flags->tokenizer.empty()) {
      flags->options.tokenizer_json = engine::ReadWholeFile(flags->tokenizer, kMostTokenizerBytes);
    }
    exit_code = bench::RunConstrainBench(std::cout, flags->options);
  });
}

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
