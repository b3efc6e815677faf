#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "bench/attention_bench.h"
#include "bench/constrain_bench.h"
#include "bench/context_bench.h"
#include "bench/gemm_bench.h"
#include "bench/head_bench.h"
#include "bench/load/load_generator.h"
#include "bench/make_model.h"
#include "bench/mlp_bench.h"
#include "bench/objects_bench.h"
#include "bench/optimizer_bench.h"
#include "bench/orbax_bench.h"
#include "bench/sample_bench.h"
#include "bench/step_bench.h"
#include "bench/template_bench.h"
#include "bench/tokenizer_bench.h"
#include "bench/train_bench.h"
#include "convert/tensors/model_source.h"
#include "engine/io/atomic_write.h"
#include "server/cli/engine_benches.h"
#include "server/cli/model_options.h"
#include "server/cli/tokenizer_source.h"
#include "server/cli/verbs.h"
#include "server/models/load_model.h"

namespace tandem::server {
namespace {

void AddGemmBench(CLI::App& command, int& exit_code, bool roof_only) {
  auto options = std::make_shared<bench::GemmBenchOptions>();
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--seconds", options->seconds, "seconds per case")
      ->check(CLI::Range(0.05, 60.0));
  if (!roof_only) {
    command
        .add_option("--types", options->types,
                    "weight type: bf16, f32, int8, int4, int6, q4_k or mxfp4")
        ->check(CLI::IsMember({"bf16", "f32", "int8", "int4", "int6", "q4_k", "mxfp4"}))
        ->delimiter(',')
        ->capture_default_str();
    command.add_flag("--gradients,!--no-gradients", options->gradients,
                     "also measure the two gradient products of bf16 and f32 (default)");
  }
  command.callback([options, &exit_code, roof_only] {
    exit_code = roof_only ? bench::RunRoofBench(std::cout, *options)
                          : bench::RunGemmBench(std::cout, *options);
  });
}

void AddAttentionBench(CLI::App& command, int& exit_code) {
  struct Flags {
    std::string kv_dtype = "auto";
    bench::AttentionBenchOptions options;
  };
  auto flags = std::make_shared<Flags>();
  bench::AttentionBenchOptions& options = flags->options;
  command.add_option("--threads", options.threads, "compute threads (0: one per physical core)");
  command.add_option("--seconds", options.seconds, "seconds per case")
      ->check(CLI::Range(0.05, 60.0));
  command.add_option("--kv-dtype", flags->kv_dtype, "type of keys and values: auto or int8")
      ->check(CLI::IsMember({"auto", "int8"}))
      ->capture_default_str();
  command.add_option("--depths", options.depths, "tokens up to the last row")
      ->check(CLI::Range(64, 1 << 20))
      ->delimiter(',')
      ->capture_default_str();
  command.callback([flags, &exit_code] {
    if (flags->kv_dtype == "int8") flags->options.kv_format = engine::KvFormat::kInt8;
    exit_code = bench::RunAttentionBench(std::cout, flags->options);
  });
}

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

void AddSampleBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::SampleBenchOptions>();
  command.add_option("--vocab", options->vocab_size, "logits per row")
      ->check(CLI::Range(1024, 1 << 20))
      ->capture_default_str();
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.callback(
      [options, &exit_code] { exit_code = bench::RunSampleBench(std::cout, *options); });
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

void AddTokenizerBench(CLI::App& command, int& exit_code) {
  struct Flags {
    std::string tokenizer, text;
    bench::TokenizerBenchOptions options;
  };
  auto flags = std::make_shared<Flags>();
  command
      .add_option("--tokenizer,-t", flags->tokenizer,
                  "model directory, GGUF file, tokenizer.json, tokenizer.model or .tiktoken file")
      ->required();
  command.add_option("--text", flags->text, "text file, a few MB")
      ->required()
      ->check(CLI::ExistingFile);
  command
      .add_option("--rounds", flags->options.rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.callback([flags, &exit_code] {
    constexpr size_t kMostTextBytes = size_t{1} << 30;
    const engine::TokenizerFiles files = LoadTokenizerAt(flags->tokenizer);
    exit_code = bench::RunTokenizerBench(std::cout, *files.tokenizer,
                                         engine::ReadWholeFile(flags->text, kMostTextBytes),
                                         flags->options);
  });
}

void AddTemplateBench(CLI::App& command, int& exit_code) {
  struct Flags {
    std::vector<std::string> files;
    bench::TemplateBenchOptions options;
  };
  auto flags = std::make_shared<Flags>();
  command.add_option("file", flags->files, "Jinja chat templates")
      ->required()
      ->check(CLI::ExistingFile);
  command.add_option("--messages", flags->options.messages, "messages of the chat")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--rounds", flags->options.rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.callback([flags, &exit_code] {
    for (const std::string& file : flags->files) {
      exit_code = bench::RunTemplateBench(std::cout, std::filesystem::path(file).filename(),
                                          engine::ReadWholeFile(file, 1 << 20), flags->options);
    }
  });
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

void AddOrbaxBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::OrbaxBenchOptions>();
  command.add_option("path", options->path, "MaxText checkpoint to import")->required();
  command.add_option("--base", options->base,
                     "directory of the model, if the checkpoint has no config.json beside it");
  command.add_option("--threads", options->threads, "compute threads (0: one per physical core)");
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  const auto dtype = std::make_shared<std::string>();
  command.add_option("--dtype", *dtype, "type that tensors are decoded to (default: the model's)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  const auto chunk_mib = std::make_shared<int64_t>(0);
  command
      .add_option("--chunk-mib", *chunk_mib,
                  "measure a copy rewritten in chunks of at most this many MiB (0: the checkpoint "
                  "as stored)")
      ->check(CLI::Range(0, 1 << 20));
  command.callback([options, dtype, chunk_mib, &exit_code] {
    if (!dtype->empty()) options->dtype = convert::FloatTypeOf(*dtype);
    options->max_chunk_bytes = *chunk_mib << 20;
    exit_code = bench::RunOrbaxBench(std::cout, *options);
  });
}

void AddObjectsBench(CLI::App& command, int& exit_code) {
  auto options = std::make_shared<bench::ObjectsBenchOptions>();
  command.add_option("url", options->url, "s3:// or gs:// URL below which files are written")
      ->required();
  command.add_option("--dir", options->dir, "directory for the files")->required();
  command.add_option("--file-mib", options->file_mib, "size of a file, in MiB")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--files", options->files, "number of files")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command.add_option("--connections", options->connections, "number of connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--rounds", options->rounds, "measured rounds; the medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.callback(
      [options, &exit_code] { exit_code = bench::RunObjectsBench(std::cout, *options); });
}

void AddSide(CLI::App& command, bench::LoadOptions::Side& side, bool is_peer) {
  const std::string prefix = is_peer ? "--peer-" : "--";
  const std::string whose = is_peer ? " of the peer" : "";
  command.add_option(prefix + "api-key", side.api_key, "bearer token" + whose);
  command.add_option(prefix + "model", side.model,
                     "model name" + whose + " (default: the first of /v1/models)");
  command
      .add_option(is_peer ? "--peer-pid" : "--server-pid", side.pid,
                  "process id" + whose + ", for its CPU time and memory")
      ->check(CLI::Range(1, 1 << 22));
}

// LoadOptions, and the options that are still text.
struct LoadFlags {
  bench::LoadOptions options;
  std::string endpoint = "chat";
  std::string arrival = "poisson";
  std::string prompt_kind;
  std::string prompt_tokens = "128";
  std::string output_tokens = "64";
  std::string token_ids = "300-2000";
};

void AddHttpBench(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<LoadFlags>();
  bench::LoadOptions& options = flags->options;
  bench::PromptOptions& prompts = options.prompts;
  command.add_option("--url", options.server.url, "server, such as http://127.0.0.1:8080")
      ->required();
  AddSide(command, options.server, false);
  command.add_option("--peer", options.peer.url,
                     "second server; runs alternate between the two and ratios are printed");
  AddSide(command, options.peer, true);
  command.add_option("--pairs", options.pairs, "runs per server, with --peer")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();

  command.add_option("--endpoint", flags->endpoint, "chat or completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  command.add_option("--streams", options.streams, "closed loop: requests in flight")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--rate", options.rate, "open loop: requests per second")
      ->check(CLI::PositiveNumber)
      ->excludes("--streams");
  command.add_option("--arrival", flags->arrival, "open loop: poisson or constant gaps")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->capture_default_str();
  command
      .add_option("--requests", options.requests,
                  "total requests (default: 4 per stream, unless --duration is given)")
      ->check(CLI::Range(1, 100000000));
  command.add_option("--duration", options.duration_s, "seconds during which requests start")
      ->check(CLI::PositiveNumber);
  command.add_option("--warmup", options.warmup, "unmeasured requests before each run")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  command.add_option("--timeout", options.request_timeout_s, "seconds a request may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_flag("!--new-connections", options.keep_alive,
                   "open a new connection per request instead of reusing them");

  command
      .add_option("--prompt-kind", flags->prompt_kind,
                  "prompt type: ids or text (default: ids for completions, text for chat)")
      ->check(CLI::IsMember({"ids", "text"}));
  command
      .add_option("--prompt-tokens", flags->prompt_tokens,
                  "tokens per prompt, or a range such as 16-128")
      ->capture_default_str();
  command.add_option("--output-tokens", flags->output_tokens, "tokens per answer, or a range")
      ->capture_default_str();
  command
      .add_option("--shared-prefix", prompts.shared_prefix_tokens,
                  "tokens of a prefix that all prompts share")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  command
      .add_option("--distinct-prompts", prompts.distinct_prompts,
                  "distinct prompts that the requests reuse in turn (0: each request has its own)")
      ->check(CLI::Range(0, 100000000))
      ->capture_default_str();
  command.add_option("--token-ids", flags->token_ids, "range of token ids for prompts of ids")
      ->capture_default_str();
  command.add_option("--seed", prompts.seed, "seed of prompts, lengths and arrivals")
      ->capture_default_str();
  command.add_option("--temperature", prompts.temperature, "sampling temperature")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_flag("--ignore-eos,!--heed-eos", prompts.ignore_eos,
                   "decode answers to their full length (default), or stop where the model stops");
  command.add_flag("--stream,!--no-stream", prompts.stream,
                   "request streamed answers (default) or plain ones");
  command.add_option("--extra", prompts.extra_json,
                     "JSON object; its members are added to each request");
  command
      .add_option("--abort", prompts.abort_fraction,
                  "fraction of clients that disconnect in the middle of a stream")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--probe", options.probes,
                  "path, such as /health, or URL of another port, to request beside the load on "
                  "new connections; repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--probe-interval", options.probe_interval_s, "seconds between these requests")
      ->check(CLI::Range(0.0001, 60.0))
      ->capture_default_str();
  command.add_option("--json", options.json_file, "file to write all figures to, as JSON");

  command.callback([flags, &exit_code] {
    bench::LoadOptions& o = flags->options;
    using Prompts = bench::PromptOptions;
    o.prompts.endpoint =
        flags->endpoint == "chat" ? Prompts::Endpoint::kChat : Prompts::Endpoint::kCompletions;
    if (flags->prompt_kind.empty()) {
      flags->prompt_kind = flags->endpoint == "chat" ? "text" : "ids";
    }
    o.prompts.kind = flags->prompt_kind == "ids" ? Prompts::Kind::kIds : Prompts::Kind::kText;
    o.arrival = flags->arrival == "poisson" ? bench::ArrivalOptions::Process::kPoisson
                                            : bench::ArrivalOptions::Process::kConstant;
    o.prompts.prompt_tokens = bench::ParseIntRange(flags->prompt_tokens, "--prompt-tokens");
    o.prompts.output_tokens = bench::ParseIntRange(flags->output_tokens, "--output-tokens");
    o.prompts.token_ids = bench::ParseIntRange(flags->token_ids, "--token-ids");
    exit_code = bench::RunLoadBench(std::cout, o);
  });
}

void AddMakeModel(CLI::App& command, int&) {
  struct Flags {
    std::string shape;
    std::string dir;
    std::string dtype = "bf16";
    int64_t layers = 0;
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
  command.add_option("--layers", flags->layers, "number of layers to write (0: all)")
      ->capture_default_str();
  command.add_option("--dtype", flags->dtype, "weight type")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command.callback([flags] {
    bench::MakeModel(flags->shape, flags->dir, flags->layers,
                     flags->dtype == "f32" ? engine::DType::kF32 : engine::DType::kBF16);
    std::cout << "wrote " << flags->dir << "\n";
  });
}

}  // namespace

void AddBench(CLI::App& command, int& exit_code) {
  command.require_subcommand(1);
  AddGemmBench(
      *command.add_subcommand("roof", "peak arithmetic and read bandwidth of this machine"),
      exit_code, true);
  AddAttentionBench(
      *command.add_subcommand("attention", "attention of one layer compared with the roof"),
      exit_code);
  AddGemmBench(*command.add_subcommand("gemm", "matrix kernels compared with the roof"), exit_code,
               false);
  AddStepBench(
      *command.add_subcommand("step", "prefill, one stream and a batch, compared with the roof"),
      exit_code);
  AddCoresBench(*command.add_subcommand(
                    "cores", "steps with 1, 2, 4, ... threads, and simulated on many cores"),
                exit_code);
  AddContextBench(
      *command.add_subcommand("context", "one stream after long prompts, and with guesses"),
      exit_code);
  AddOptimizerBench(
      *command.add_subcommand("optimizer", "optimiser steps compared with a read loop, GB/s"),
      exit_code);
  AddMlpBench(*command.add_subcommand("mlp",
                                      "one feed-forward layer on long sequences, half of it "
                                      "trained: it/s compared with the roof"),
              exit_code);
  AddHeadBench(*command.add_subcommand(
                   "head", "loss over a large vocabulary, compared with its matrix products alone"),
               exit_code);
  AddOrbaxBench(*command.add_subcommand(
                    "orbax", "MaxText checkpoint import, compared with decompression alone"),
                exit_code);
  AddObjectsBench(
      *command.add_subcommand("objects", "uploads to an object store, and fetches from it"),
      exit_code);
  AddTrainBench(
      *command.add_subcommand("train", "training steps, optionally compared with another program"),
      exit_code);
  AddSampleBench(*command.add_subcommand("sample", "token sampling from large vocabularies"),
                 exit_code);
  AddConstrainBench(
      *command.add_subcommand("constrain", "decoding under schemas, compared with free decoding"),
      exit_code);
  AddTokenizerBench(*command.add_subcommand("tokenizer", "text to tokens and back, MB/s per core"),
                    exit_code);
  AddTemplateBench(
      *command.add_subcommand("template", "rendering chats with chat templates, ms each"),
      exit_code);
  AddHttpBench(
      *command.add_subcommand(
          "http",
          "load test of any OpenAI-compatible server, optionally compared with a second one"),
      exit_code);
  AddFairnessBench(*command.add_subcommand(
                       "fairness", "first tokens beside batches and long prompts, over alone"),
                   exit_code);
  AddStatesBench(*command.add_subcommand(
                     "states", "steps with snapshots of states over steps without, and reuse"),
                 exit_code);
  AddMakeModel(
      *command.add_subcommand("make-model", "write a model with random weights for measurements"),
      exit_code);
}

}  // namespace tandem::server
