#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/template_bench.h"
#include "bench/tokenizer_bench.h"
#include "engine/io/atomic_write.h"
#include "server/cli/bench/bench_verbs.h"
#include "server/cli/tokenizer_source.h"

namespace tandem::server {

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

}  // namespace tandem::server
