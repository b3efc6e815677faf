#include "engine/tokenizer/tokenizer.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "engine/io/atomic_write.h"
#include "engine/tokenizer/training/bpe_trainer.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/tokenizer_source.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCorpusBytes = size_t{16} << 30;

struct TokenizerFlags {
  std::string corpus;
  std::string out = "tokenizer.json";
  engine::BpeTrainerOptions trainer;
  std::string tokenizer;
  std::string text;
  std::string file;
  bool parse_special = false;
  bool keep_special = false;
  bool surround = false;
  bool json_lines = false;
  std::string ids;
  ProgressFlags progress;
};

std::string InputText(const TokenizerFlags& flags, const std::string& inline_text) {
  if (!flags.file.empty()) return engine::ReadWholeFile(flags.file, kMaxCorpusBytes);
  if (!inline_text.empty() && inline_text != "-") return inline_text;
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

void Train(const TokenizerFlags& flags) {
  const std::string corpus = engine::ReadWholeFile(flags.corpus, kMaxCorpusBytes);
  const ShownProgress shown(flags.progress);
  ProgressTask task("learning merges", "merges", 0);
  const std::string json =
      engine::TrainBpe(corpus, flags.trainer, [&](int64_t done, int64_t total) {
        task.SetTotal(total);
        task.Reach(done);
      });
  engine::WriteFileAtomically(flags.out, json);
  std::printf("wrote %s\n", flags.out.c_str());
}

void EncodeOne(const engine::TokenizerFiles& files, const TokenizerFlags& flags,
               std::string_view text) {
  const auto special = flags.parse_special ? engine::SpecialTokens::kParseSpecial
                                           : engine::SpecialTokens::kPlainText;
  std::vector<TokenId> ids = files.tokenizer->Encode(text, special);
  if (flags.surround) {
    ids.insert(ids.begin(), files.prefix.begin(), files.prefix.end());
    ids.insert(ids.end(), files.suffix.begin(), files.suffix.end());
  }
  std::string line;
  for (const TokenId id : ids) line.append(line.empty() ? "" : ",").append(std::to_string(id));
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stdout);
}

// Calls each(line) for every line of a text; the last one may lack its newline.
template <class Each>
void ForEachLine(std::string_view text, Each&& each) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    each(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void Encode(const TokenizerFlags& flags) {
  const engine::TokenizerFiles files = LoadTokenizerAt(flags.tokenizer);
  const std::string text = InputText(flags, flags.text);
  if (!flags.json_lines) return EncodeOne(files, flags, text);
  ForEachLine(text, [&](std::string_view line) {
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_string()) {
      throw Error(ErrorCode::kInvalidArgument, "--json-lines: a line must be a JSON string, got '" +
                                                   std::string(line.substr(0, 40)) + "'");
    }
    EncodeOne(files, flags, value.get_ref<const std::string&>());
  });
}

std::vector<TokenId> ParseIds(std::string_view text, int64_t vocab_size) {
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (*at == ',' || *at == ' ' || *at == '\n') {
      ++at;
      continue;
    }
    TokenId id = -1;
    const auto [next, fault] = std::from_chars(at, end, id);
    if (fault != std::errc() || id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ids must be numbers in [0, " + std::to_string(vocab_size - 1) + "], got '" +
                      std::string(at, std::min<size_t>(20, static_cast<size_t>(end - at))) + "'");
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

void Decode(const TokenizerFlags& flags) {
  const engine::TokenizerFiles files = LoadTokenizerAt(flags.tokenizer);
  const engine::Tokenizer& tokenizer = *files.tokenizer;
  const auto decode = [&](std::string_view ids) {
    return engine::Decode(tokenizer, ParseIds(ids, tokenizer.vocab_size()), !flags.keep_special);
  };
  const std::string text = InputText(flags, flags.ids);
  std::string out;
  if (flags.json_lines) {
    ForEachLine(text, [&](std::string_view line) {
      out.append(nlohmann::json(decode(line)).dump()).push_back('\n');
    });
  } else {
    out = decode(text) + "\n";
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
}

}  // namespace

void AddTokenizer(CLI::App& command, int&) {
  const auto flags = std::make_shared<TokenizerFlags>();
  command.require_subcommand(1);

  CLI::App* train = command.add_subcommand("train", "train byte-level BPE on a text file");
  train->add_option("corpus", flags->corpus, "text file")->required()->check(CLI::ExistingFile);
  train->add_option("--vocab-size", flags->trainer.vocab_size, "size of the vocabulary in tokens")
      ->check(CLI::Range(257, 1 << 24))
      ->capture_default_str();
  train
      ->add_option("--min-pair-count", flags->trainer.min_pair_count,
                   "least count of a pair to merge it")
      ->capture_default_str();
  train->add_option("--special", flags->trainer.special_tokens,
                    "control token; repeatable; control tokens get the first ids");
  train->add_option("--out,-o", flags->out, "file to write")->capture_default_str();
  AddProgressFlags(*train, flags->progress);
  train->callback([flags] { Train(*flags); });

  CLI::App* encode = command.add_subcommand("encode", "print the token ids of a text");
  encode->add_option("text", flags->text, "text to encode ('-' or nothing: standard input)");
  encode
      ->add_option("--tokenizer,-t", flags->tokenizer,
                   "model directory, GGUF file, tokenizer.json, tokenizer.model or .tiktoken file")
      ->required();
  encode->add_option("--file,-f", flags->file, "read the text from a file");
  encode->add_flag("--special", flags->parse_special,
                   "parse control tokens that are spelled in the text");
  encode->add_flag("--surround", flags->surround,
                   "add the tokens that the post-processor puts around a text");
  encode->add_flag("--json-lines", flags->json_lines,
                   "read one JSON string per line of input; print one line of ids for each");
  encode->callback([flags] { Encode(*flags); });

  CLI::App* decode = command.add_subcommand("decode", "print the text that token ids decode to");
  decode->add_option("ids", flags->ids,
                     "token ids to decode: 1,2,3 ('-' or nothing: standard input)");
  decode
      ->add_option("--tokenizer,-t", flags->tokenizer,
                   "model directory, GGUF file, tokenizer.json, tokenizer.model or .tiktoken file")
      ->required();
  decode->add_option("--file,-f", flags->file, "read the ids from a file");
  decode->add_flag("--special", flags->keep_special, "print control tokens too");
  decode->add_flag("--json-lines", flags->json_lines,
                   "decode each line of input; print one JSON string for each");
  decode->callback([flags] { Decode(*flags); });
}

}  // namespace tandem::server
