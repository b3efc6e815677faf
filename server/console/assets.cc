#include "server/console/assets.h"

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <map>

#include "engine/base/check.h"
#include "engine/base/embed.h"
#include "engine/io/atomic_write.h"

// Every file of the console: its symbol, and its name below server/console.
#define TANDEM_CONSOLE_FILES(FILE)                  \
  FILE(console_app, "app.js")                       \
  FILE(console_chat_lane, "chat/lane.js")           \
  FILE(console_chat_message, "chat/message.js")     \
  FILE(console_chat_settings, "chat/settings.js")   \
  FILE(console_chat_tree, "chat/tree.js")           \
  FILE(console_docs_style, "docs.css")              \
  FILE(console_docs_page, "docs.html")              \
  FILE(console_docs, "docs.js")                     \
  FILE(console_docs_document, "docs/document.js")   \
  FILE(console_docs_operation, "docs/operation.js") \
  FILE(console_docs_request, "docs/request.js")     \
  FILE(console_index, "index.html")                 \
  FILE(console_lib_api, "lib/api.js")               \
  FILE(console_lib_chart, "lib/chart.js")           \
  FILE(console_lib_curl, "lib/curl.js")             \
  FILE(console_lib_dom, "lib/dom.js")               \
  FILE(console_lib_markdown, "lib/markdown.js")     \
  FILE(console_lib_metrics, "lib/metrics.js")       \
  FILE(console_lib_text, "lib/text.js")             \
  FILE(console_lib_tokens, "lib/tokens.js")         \
  FILE(console_models_aliases, "models/aliases.js") \
  FILE(console_models_load, "models/load.js")       \
  FILE(console_screens_chat, "screens/chat.js")     \
  FILE(console_screens_data, "screens/data.js")     \
  FILE(console_screens_models, "screens/models.js") \
  FILE(console_screens_server, "screens/server.js") \
  FILE(console_screens_train, "screens/train.js")   \
  FILE(console_server_jobs, "server/jobs.js")       \
  FILE(console_server_keys, "server/keys.js")       \
  FILE(console_style, "style.css")                  \
  FILE(console_train_form, "train/form.js")         \
  FILE(console_train_job, "train/job.js")           \
  FILE(console_train_list, "train/list.js")         \
  FILE(console_train_parts, "train/parts.js")

#define TANDEM_CONSOLE_EMBED(symbol, name) TANDEM_EMBED(symbol, TANDEM_CONSOLE_SOURCE "/" name);
TANDEM_CONSOLE_FILES(TANDEM_CONSOLE_EMBED)

namespace tandem::server {
namespace {

constexpr size_t kMaxFileBytes = 4 << 20;

struct EmbeddedFile {
  std::string_view name;
  const std::byte* begin;
  const std::byte* end;
};

#define TANDEM_CONSOLE_ROW(symbol, name) EmbeddedFile{name, symbol##_begin, symbol##_end},
const EmbeddedFile kFiles[] = {TANDEM_CONSOLE_FILES(TANDEM_CONSOLE_ROW)};

std::string_view TypeOf(std::string_view name) {
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/html; charset=utf-8";
}

// Letters, digits, '_' and '/' with one of the console's endings: no hidden files, no parents.
bool IsConsoleName(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  const std::string_view ending = name.substr(dot);
  if (ending != ".js" && ending != ".css" && ending != ".html") return false;
  for (const char c : name.substr(0, dot)) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '/';
    if (!is_word) return false;
  }
  return name.front() != '/';
}

std::string InGzip(std::string_view bytes) {
  z_stream stream{};
  // 16 asks for gzip's header instead of zlib's.
  constexpr int kGzipWindow = 15 + 16;
  TANDEM_CHECK(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindow, 9,
                            Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  std::string in(bytes);  // zlib takes its input as not constant
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  TANDEM_CHECK(status == Z_STREAM_END);
  return out;
}

ConsoleAsset MakeAsset(std::string_view name, std::string bytes) {
  ConsoleAsset asset;
  asset.content_type = TypeOf(name);
  asset.gzip = InGzip(bytes);
  const uLong sum =
      crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
  std::array<char, 48> tag{};
  // Weak: the plain and the compressed answer share it.
  std::snprintf(tag.data(), tag.size(), "W/\"%08lx-%zx\"", sum, bytes.size());
  asset.etag = tag.data();
  asset.bytes = std::move(bytes);
  return asset;
}

}  // namespace

std::vector<std::string_view> ConsoleFileNames() {
  std::vector<std::string_view> names;
  for (const EmbeddedFile& file : kFiles) names.push_back(file.name);
  return names;
}

const ConsoleAsset* FindConsoleAsset(std::string_view name) {
  static const std::map<std::string_view, ConsoleAsset> assets = [] {
    std::map<std::string_view, ConsoleAsset> made;
    for (const EmbeddedFile& file : kFiles) {
      const auto n_bytes = static_cast<size_t>(file.end - file.begin);
      made.emplace(
          file.name,
          MakeAsset(file.name, std::string(reinterpret_cast<const char*>(file.begin), n_bytes)));
    }
    return made;
  }();
  const auto found = assets.find(name);
  return found == assets.end() ? nullptr : &found->second;
}

std::optional<ConsoleAsset> ReadConsoleAsset(const std::filesystem::path& directory,
                                             std::string_view name) {
  if (!IsConsoleName(name)) return std::nullopt;
  const std::filesystem::path path = directory / name;
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  return MakeAsset(name, engine::ReadWholeFile(path, kMaxFileBytes));
}

}  // namespace tandem::server
