#include <algorithm>

#include "engine/base/quoted.h"
#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/files/json_value.h"
#include "engine/tokenizer/models/bpe.h"
#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/readers/sentencepiece.h"
#include "engine/tokenizer/readers/tiktoken.h"
#include "engine/tokenizer/readers/tokenizer_classes.h"
#include "engine/tokenizer/readers/tokenizer_json.h"
#include "engine/tokenizer/tokenizer.h"

// Combines the tokenizer settings of a model directory's files.
namespace tandem::engine {
namespace {

// The fields of tokenizer_config.json that are used.
struct TokenizerConfig {
  std::string file;
  std::string tokenizer_class;
  std::optional<std::string> bos, eos;
  std::optional<bool> add_bos;
  bool add_eos = false;
  std::optional<std::string> chat_template;
  std::optional<std::string> prefix, suffix, middle;  // of infilling
  std::vector<std::string> special;                   // spellings of all tokens it names as special
  std::vector<AddedToken> added;                      // added_tokens_decoder
};

// Reads a token written as "<s>" or as {"content": "<s>", ...}.
std::optional<std::string> TokenSpelling(JsonValue value) {
  if (value.IsObject()) {
    const auto content = value.Find("content");
    if (!content) return std::nullopt;
    value = *content;
  }
  const auto text = value.AsString();
  if (!text) return std::nullopt;
  return std::string(*text);
}

std::optional<std::string> ReadTokenName(const TokenizerConfig& config, JsonValue root,
                                         const char* key) {
  const auto value = root.Find(key);
  if (!value) return std::nullopt;
  auto spelling = TokenSpelling(*value);
  if (!spelling) ThrowBroken(config.file, key, "must be a token: a string or an object");
  return spelling;
}

std::optional<std::string> ReadChatTemplate(const TokenizerConfig& config, JsonValue value) {
  if (const auto text = value.AsString()) return std::string(*text);
  if (!value.IsArray()) ThrowBroken(config.file, "chat_template", "must be a string or an array");
  // Named templates: takes the one named "default", or the only one.
  std::optional<std::string> chosen, only;
  value.ForEachItem([&](size_t i, JsonValue item) {
    const auto name = item.Find("name"), text = item.Find("template");
    if (!name || !name->AsString() || !text || !text->AsString()) {
      ThrowBroken(config.file, "chat_template[" + std::to_string(i) + "]",
                  "must have a name and a template");
    }
    only = std::string(*text->AsString());
    if (*name->AsString() == "default") chosen = only;
  });
  if (!chosen && value.size() == 1) return only;
  return chosen;
}

void ReadAddedTokensDecoder(TokenizerConfig& config, JsonValue value) {
  constexpr const char* kField = "added_tokens_decoder";
  if (!value.IsObject()) ThrowBroken(config.file, kField, "must be an object");
  value.ForEachMember([&](std::string_view key, JsonValue item) {
    const std::string field = std::string(kField) + "." + Quoted(key);
    // At most 8 digits; longer ids are beyond every vocabulary.
    const bool is_id =
        !key.empty() && key.size() <= 8 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto spelling = item.IsObject() ? TokenSpelling(item) : std::nullopt;
    if (!is_id || !spelling) ThrowBroken(config.file, field, "must map an id to a token");
    const auto flag = [&](const char* name) {
      const auto found = item.Find(name);
      return found && found->AsBool().value_or(false);
    };
    config.added.push_back({.content = *spelling,
                            .id = static_cast<TokenId>(std::stol(std::string(key))),
                            .special = flag("special"),
                            .single_word = flag("single_word"),
                            .lstrip = flag("lstrip"),
                            .rstrip = flag("rstrip"),
                            .normalized = flag("normalized")});
  });
}

std::string Describe(const TokenizerTexts& texts, std::string_view file_name) {
  if (texts.describe) return texts.describe(file_name);
  return texts.source + "/" + std::string(file_name);
}

TokenizerConfig ReadConfig(const TokenizerTexts& texts) {
  TokenizerConfig config;
  config.file = Describe(texts, "tokenizer_config.json");
  if (!texts.tokenizer_config_json) return config;
  const JsonDocument document = JsonDocument::Parse(*texts.tokenizer_config_json, config.file);
  const JsonValue root = document.root();
  if (!root.IsObject()) ThrowBroken(config.file, "the file", "must be a JSON object");

  if (const auto name = root.Find("tokenizer_class")) {
    if (!name->AsString()) ThrowBroken(config.file, "tokenizer_class", "must be a string");
    config.tokenizer_class = *name->AsString();
  }
  config.bos = ReadTokenName(config, root, "bos_token");
  config.eos = ReadTokenName(config, root, "eos_token");
  for (const auto& token : {config.bos, config.eos, ReadTokenName(config, root, "unk_token"),
                            ReadTokenName(config, root, "pad_token")}) {
    if (token) config.special.push_back(*token);
  }
  if (const auto more = root.Find("additional_special_tokens")) {
    more->ForEachItem([&](size_t, JsonValue item) {
      if (auto spelling = TokenSpelling(item)) config.special.push_back(std::move(*spelling));
    });
  }
  const auto infill = [&](const char* key) {
    const auto value = root.Find(key);
    return value ? TokenSpelling(*value) : std::nullopt;
  };
  config.prefix = infill("prefix_token");
  config.suffix = infill("suffix_token");
  config.middle = infill("middle_token");
  if (const auto flag = root.Find("add_bos_token")) {
    config.add_bos = flag->AsBool();
    if (!config.add_bos) ThrowBroken(config.file, "add_bos_token", "must be true or false");
  }
  if (const auto flag = root.Find("add_eos_token"); flag && !flag->IsNull()) {
    const std::optional<bool> adds = flag->AsBool();
    if (!adds) ThrowBroken(config.file, "add_eos_token", "must be true or false");
    config.add_eos = *adds;
  }
  if (const auto value = root.Find("chat_template")) {
    config.chat_template = ReadChatTemplate(config, *value);
  }
  if (const auto value = root.Find("added_tokens_decoder")) ReadAddedTokensDecoder(config, *value);
  return config;
}

PairTable ReadMergesText(std::string_view text, const Vocabulary& vocabulary) {
  MergeRules merges(vocabulary,
                    static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1);
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    merges.Add(line, "merges.txt line " + std::to_string(line_number));
  }
  return std::move(merges).Take();
}

// Reads GPT-2's two files (tokenizer_classes.h).
std::unique_ptr<Tokenizer> LoadVocabAndMerges(const TokenizerTexts& texts,
                                              const TokenizerConfig& config) {
  const TwoFileClass* tokenizer_class = FindTwoFileClass(config.tokenizer_class);
  if (tokenizer_class == nullptr) {
    ThrowUnsupported(config.file, "tokenizer_class",
                     Quoted(config.tokenizer_class) + " is not supported without tokenizer.json");
  }
  const JsonDocument document =
      JsonDocument::Parse(*texts.vocab_json, Describe(texts, "vocab.json"));
  // Field paths in messages begin with the name of the file.
  Vocabulary vocabulary =
      Vocabulary::FromObject(texts.source, /*byte_level=*/true, document.root(), "vocab.json");
  PairTable merges = ReadMergesText(*texts.merges_txt, vocabulary);

  for (const AddedToken& token : config.added) {
    vocabulary.AddAddedToken(token, "tokenizer_config.json added_tokens_decoder");
  }
  std::vector<std::string> special = config.special;
  special.emplace_back("<|endoftext|>");  // GPT-2's own files do not name it as special
  for (const std::string& spelling : special) {
    const auto& added = vocabulary.added_tokens();
    const bool known = std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
      return token.content == spelling;
    });
    const auto id = vocabulary.Find(spelling);
    if (known || !id) continue;
    vocabulary.AddAddedToken({.content = spelling, .id = *id, .special = true}, Quoted(spelling));
  }

  TokenizerParts parts;
  parts.Take(vocabulary);
  std::vector<Pretokenizer::Stage> stages;
  if (tokenizer_class->pattern == kGpt2Pattern) {
    stages.push_back(Gpt2Split{});
  } else {
    stages.push_back(PatternSplit{Pattern::Compile(tokenizer_class->pattern, texts.source),
                                  SplitBehavior::kIsolated});
  }
  if (tokenizer_class->nfc) parts.normalizer = Normalizer({UnicodeStep(NormalForm::kNfc)});
  parts.pretokenizer = Pretokenizer(std::move(stages));
  TokenTable tokens = vocabulary.tokens();
  parts.model = std::make_unique<BpeModel>(BpeOptions{.byte_level = true}, std::move(tokens),
                                           std::move(merges), vocabulary.ByteTokens(),
                                           vocabulary.control_ids());
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

TiktokenFamily TiktokenFamilyOf(const TokenizerTexts& texts, const TokenizerConfig& config,
                                const std::string& file) {
  if (const auto family = FindTiktokenFamily(config.tokenizer_class, "")) return *family;
  std::string type;
  if (texts.config_json) {
    const std::string source = Describe(texts, "config.json");
    const JsonDocument document = JsonDocument::Parse(*texts.config_json, source);
    if (const auto value = document.root().Find("model_type")) {
      type = value->AsString().value_or("");
    }
  }
  if (const auto family = FindTiktokenFamily("", type)) return *family;
  ThrowUnsupported(
      file, "the file",
      "does not name its split pattern: set tokenizer_class in tokenizer_config.json (" +
          std::string(TiktokenClassNames()) + "), or convert the file to tokenizer.json");
}

void LoadRanks(const TokenizerTexts& texts, const TokenizerConfig& config, std::string_view ranks,
               const std::string& file, TokenizerFiles& files) {
  const TiktokenFamily family = TiktokenFamilyOf(texts, config, file);
  files.tokenizer = LoadTiktoken(ranks, file, family, config.added);
  if (family == TiktokenFamily::kLlama3) {
    files.bos = files.tokenizer->FindToken("<|begin_of_text|>");
    files.add_bos = true;
  }
}

// Applies the settings of the files beside a SentencePiece model. Without add_bos_token, BPE models
// put their BOS before texts, as the programs that made them do; Unigram models do not.
void LoadModelFile(const TokenizerTexts& texts, const TokenizerConfig& config,
                   TokenizerFiles& files) {
  const std::string file = Describe(texts, "tokenizer.model");
  if (LooksLikeTiktoken(*texts.tokenizer_model)) {
    LoadRanks(texts, config, *texts.tokenizer_model, file, files);
    return;
  }
  LoadedSentencePiece loaded = LoadSentencePiece(*texts.tokenizer_model, file);
  files.tokenizer = std::move(loaded.tokenizer);
  files.bos = loaded.bos;
  files.eos = loaded.eos;
  files.add_bos = loaded.is_bpe;
}

std::optional<TokenId> FindNamed(const TokenizerConfig& config, const char* field,
                                 const std::optional<std::string>& spelling,
                                 const Tokenizer& tokenizer) {
  if (!spelling || spelling->empty()) return std::nullopt;
  const std::optional<TokenId> id = tokenizer.FindToken(*spelling);
  if (!id)
    ThrowBroken(config.file, field, "is " + Quoted(*spelling) + ", which is not in the vocabulary");
  return id;
}

// Other tokenizers use these fields otherwise, so a missing token is no fault.
std::optional<TokenizerFiles::Infill> FindInfill(const TokenizerConfig& config,
                                                 const Tokenizer& tokenizer) {
  if (!config.prefix || !config.suffix || !config.middle) return std::nullopt;
  const auto prefix = tokenizer.FindToken(*config.prefix);
  const auto suffix = tokenizer.FindToken(*config.suffix);
  const auto middle = tokenizer.FindToken(*config.middle);
  if (!prefix || !suffix || !middle) return std::nullopt;
  return TokenizerFiles::Infill{*prefix, *suffix, *middle};
}

}  // namespace

std::optional<TokenizerFiles> LoadTokenizer(const TokenizerTexts& texts) {
  const TokenizerConfig config = ReadConfig(texts);
  TokenizerFiles files;
  if (texts.tokenizer_json) {
    LoadedTokenizerJson loaded =
        LoadTokenizerJson(*texts.tokenizer_json, Describe(texts, "tokenizer.json"));
    files.tokenizer = std::move(loaded.tokenizer);
    files.prefix = std::move(loaded.prefix);
    files.suffix = std::move(loaded.suffix);
    if (!files.prefix.empty()) files.bos = files.prefix.front();
    files.add_bos = files.bos.has_value();
  } else if (texts.tokenizer_model) {
    LoadModelFile(texts, config, files);
  } else if (texts.tiktoken) {
    LoadRanks(texts, config, *texts.tiktoken, Describe(texts, "*.tiktoken"), files);
  } else if (texts.vocab_json && texts.merges_txt) {
    files.tokenizer = LoadVocabAndMerges(texts, config);
  } else if (texts.merges_txt) {
    ThrowBroken(Describe(texts, "merges.txt"), "the file", "cannot be used without vocab.json");
  } else if (texts.vocab_json) {
    ThrowBroken(Describe(texts, "vocab.json"), "the file", "cannot be used without merges.txt");
  } else {
    return std::nullopt;
  }

  const auto bos = FindNamed(config, "bos_token", config.bos, *files.tokenizer);
  const auto eos = FindNamed(config, "eos_token", config.eos, *files.tokenizer);
  if (bos) files.bos = bos;
  if (eos) files.eos = eos;
  files.add_bos = files.bos.has_value() && config.add_bos.value_or(files.add_bos);
  if (files.suffix.empty() && config.add_eos && files.eos) files.suffix = {*files.eos};
  files.infill = FindInfill(config, *files.tokenizer);
  files.chat_template =
      texts.chat_template_jinja ? texts.chat_template_jinja : config.chat_template;
  return files;
}

std::optional<TokenizerFiles> LoadTokenizer(
    const std::string& source,
    const std::function<std::optional<std::string>(std::string_view file_name)>& read,
    const std::function<std::string(std::string_view file_name)>& describe) {
  TokenizerTexts texts;
  texts.source = source;
  texts.describe = describe;
  texts.tokenizer_json = read("tokenizer.json");
  texts.tokenizer_config_json = read("tokenizer_config.json");
  texts.chat_template_jinja = read("chat_template.jinja");
  if (!texts.tokenizer_json) {
    texts.vocab_json = read("vocab.json");
    texts.merges_txt = read("merges.txt");
    texts.tokenizer_model = read("tokenizer.model");
    for (const char* name : {"qwen.tiktoken", "tokenizer.tiktoken", "tiktoken.model"}) {
      if (!texts.tiktoken) texts.tiktoken = read(name);
    }
    texts.config_json = read("config.json");
  }
  return LoadTokenizer(texts);
}

}  // namespace tandem::engine
