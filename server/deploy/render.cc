#include "server/deploy/render.h"

#include <algorithm>
#include <span>

#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "server/deploy/templates.h"

namespace tandem::server {
namespace {

// Marks a directory that RenderDeploy may replace.
constexpr const char* kMarker = ".tandem-deploy";

enum class Format { kYaml, kHcl, kShell, kSettings, kPlain };

Format FormatOf(std::string_view file) {
  if (file.ends_with(".yaml")) return Format::kYaml;
  if (file.ends_with(".tf") || file.ends_with(".tfvars")) return Format::kHcl;
  if (file.ends_with(".sh")) return Format::kShell;
  if (file.ends_with(".cfg")) return Format::kSettings;
  return Format::kPlain;  // holds no placeholder
}

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsPlainWord(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// Whether the end of `line` is inside a string of the format.
bool IsInString(Format format, std::string_view line) {
  const char quote = format == Format::kShell ? '\'' : '"';
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && inside && quote == '"') {
      ++i;
    } else if (line[i] == quote) {
      inside = !inside;
    }
  }
  return inside;
}

// As the content of a quoted string. Values are valid UTF-8 without control characters.
std::string Escaped(Format format, std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    const bool before_brace = i + 1 < value.size() && value[i + 1] == '{';
    if (format == Format::kShell) {
      // Ends the string, adds an escaped quote, begins the string again.
      out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (format == Format::kHcl && (c == '$' || c == '%') && before_brace) {
      out += {c, c};
    } else {
      out.push_back(c);
    }
  }
  return out;
}

// Kubernetes replaces $(NAME) in arguments, and job specs replace ${NAME}: neither may come from a
// value. The others are line ends or invisible in YAML.
bool IsHostile(std::string_view value) {
  constexpr std::string_view kRefused[] = {"$(",           "${",           "\xC2\x85",
                                           "\xE2\x80\xA8", "\xE2\x80\xA9", "\xEF\xBB\xBF"};
  const bool has_control = std::any_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  return has_control || std::any_of(std::begin(kRefused), std::end(kRefused), [&](auto refused) {
           return value.find(refused) != std::string_view::npos;
         });
}

class TemplateRenderer {
 public:
  TemplateRenderer(std::string_view file, const DeployValues& values)
      : file_(file), format_(FormatOf(file)), values_(values) {}

  std::string Line(std::string_view line, int number) {
    number_ = number;
    std::string out;
    while (true) {
      const size_t at = line.find("{{");
      if (at == std::string_view::npos) break;
      const size_t end = line.find("}}", at);
      if (end == std::string_view::npos) Fail("a placeholder is not closed");
      out += line.substr(0, at);
      out += Value(line.substr(at + 2, end - at - 2), out);
      line.remove_prefix(end + 2);
    }
    out += line;
    const size_t unresolved = out.find("YOUR_");
    if (unresolved != std::string::npos) {
      const size_t end = out.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", unresolved);
      Fail("unresolved placeholder " + out.substr(unresolved, end - unresolved));
    }
    return out;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(file_) + ":" + std::to_string(number_) + ": " + what);
  }

  std::string Value(std::string_view name, std::string_view before) const {
    const auto found = values_.find(name);
    if (found == values_.end()) Fail("no value for " + std::string(name));
    const std::string& value = found->second;
    if (IsHostile(value)) {
      Fail("the value of " + std::string(name) +
           " contains $(, ${ or a character that is no plain text");
    }
    switch (format_) {
      case Format::kYaml:
      case Format::kHcl:
        if (IsInString(format_, before)) return Escaped(format_, value);
        if (IsNumber(value)) return value;
        Fail("the value of " + std::string(name) + " must be a number here");
      case Format::kShell:
        if (IsInString(format_, before)) return Escaped(format_, value);
        Fail("{{" + std::string(name) + "}} must stand in single quotes");
      case Format::kSettings:
        if (IsPlainWord(value)) return value;
        Fail("the value of " + std::string(name) + " must be one plain word here");
      case Format::kPlain:
        break;
    }
    Fail("this file takes no values");
  }

  const std::string_view file_;
  const Format format_;
  const DeployValues& values_;
  int number_ = 0;
};

void WriteRendered(const std::filesystem::path& path, std::string_view text) {
  MakeDirectories(path.parent_path());
  engine::FileDescriptor file = engine::CreateNewFile(path);
  engine::WriteAll(file, std::as_bytes(std::span(text)), path);
  file.Close(path);
}

}  // namespace

std::string RenderTemplate(std::string_view file, std::string_view text,
                           const DeployValues& values) {
  TemplateRenderer renderer(file, values);
  std::string out;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    out += renderer.Line(text.substr(0, end), number);
    if (end == std::string_view::npos) break;
    out.push_back('\n');
    text.remove_prefix(end + 1);
  }
  return out;
}

std::vector<std::string> RenderDeploy(const DeployValues& values,
                                      const std::filesystem::path& out) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(out, ignored)) &&
      !fs::is_regular_file(out / kMarker, ignored)) {
    throw Error(ErrorCode::kAlreadyExists,
                out.string() +
                    " exists and was not made by this command: give another --out, or "
                    "remove it");
  }
  std::vector<std::string> paths;
  MakeDirectories(engine::ParentOf(out));
  engine::PublishDirectory(
      out,
      [&](const fs::path& temporary) {
        for (const DeployTemplate& source : DeployTemplates()) {
          const std::string text = source.has_values
                                       ? RenderTemplate(source.path, source.text, values)
                                       : std::string(source.text);
          const fs::path path = temporary / source.path;
          WriteRendered(path, text);
          if (source.path.ends_with(".sh")) {
            fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec,
                            fs::perm_options::add);
          }
          paths.emplace_back(source.path);
        }
        WriteRendered(temporary / kMarker, "rendered by tandem deploy render\n");
      },
      engine::IfThere::kReplace);
  return paths;
}

}  // namespace tandem::server
