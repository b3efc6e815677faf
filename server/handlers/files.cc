#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "server/files/file_download.h"
#include "server/files/file_store.h"
#include "server/files/form_upload.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/http/syntax/byte_range.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPurpose = "purpose";
constexpr const char* kAnchor = "expires_after[anchor]";
constexpr const char* kSeconds = "expires_after[seconds]";
constexpr std::array<std::string_view, 6> kUploadPurposes = {"fine-tune", "assistants", "batch",
                                                             "user_data", "vision",     "evals"};
// Purposes of files that the server writes; clients cannot upload with them.
constexpr std::array<std::string_view, 2> kResultPurposes = {"fine-tune-results", "batch_output"};
constexpr int64_t kMinExpiryS = 3600;
constexpr int64_t kMaxExpiryS = 30 * 24 * 3600;

bool IsUploadPurpose(std::string_view purpose) {
  return std::find(kUploadPurposes.begin(), kUploadPurposes.end(), purpose) !=
         kUploadPurposes.end();
}

std::string PurposeList() {
  std::string list;
  for (const std::string_view purpose : kUploadPurposes) {
    list += (list.empty() ? "" : ", ") + std::string(purpose);
  }
  return list;
}

Error BadPurpose(const std::string& purpose) {
  return BadValue(kPurpose,
                  "purpose must be one of " + PurposeList() + ", got " + ShortForm(Json(purpose)));
}

int64_t ParseExpiry(const std::string& text) {
  int64_t seconds = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (fault != std::errc() || end != text.data() + text.size() || seconds < kMinExpiryS ||
      seconds > kMaxExpiryS) {
    throw BadValue(kSeconds, std::string(kSeconds) + " must be an integer in [" +
                                 std::to_string(kMinExpiryS) + ", " + std::to_string(kMaxExpiryS) +
                                 "], got " + ShortForm(Json(text)));
  }
  return seconds;
}

// Throws for the first fault, in the order file, purpose, expires_after.
NewFile CheckForm(const UploadedForm& form) {
  if (!form.has_file_part) throw MissingField("file");
  if (!form.file) throw BadValue("file", "file must be a form part with a filename");
  if (form.file->bytes() == 0) throw BadValue("file", "file is empty");
  const std::optional<std::string> filename = SafeFileName(*form.filename);
  if (!filename) {
    throw BadValue("file",
                   "file needs the filename of a file, got " + ShortForm(Json(*form.filename)));
  }
  const auto field = [&](const char* name) -> const std::string* {
    const auto found = form.fields.find(name);
    return found == form.fields.end() ? nullptr : &found->second;
  };
  const std::string* purpose = field(kPurpose);
  if (purpose == nullptr) throw MissingField(kPurpose);
  if (!IsUploadPurpose(*purpose)) throw BadPurpose(*purpose);

  NewFile file;
  file.filename = *filename;
  file.purpose = *purpose;
  const std::string* anchor = field(kAnchor);
  const std::string* seconds = field(kSeconds);
  if (anchor == nullptr && seconds == nullptr) return file;
  if (anchor == nullptr) throw MissingField(kAnchor);
  if (*anchor != "created_at") {
    throw BadValue(kAnchor,
                   std::string(kAnchor) + " must be 'created_at', got " + ShortForm(Json(*anchor)));
  }
  if (seconds == nullptr) throw MissingField(kSeconds);
  file.expires_after_s = ParseExpiry(*seconds);
  return file;
}

std::shared_ptr<FormUpload> OpenForm(const HandlerContext& context, const Request& head,
                                     std::function<void()> has_room) {
  const std::string* type = head.FindHeader("content-type");
  return FormUpload::Open(RequireFiles(context), type == nullptr ? "" : *type,
                          {kPurpose, kAnchor, kSeconds}, std::move(has_room));
}

}  // namespace

FileStore& RequireFiles(const HandlerContext& context) {
  FileStore* files = context.files;
  if (files == nullptr) throw NotReady(context);
  return *files;
}

std::string FileBody(const StoredFile& file) {
  Json out;
  out["id"] = file.id;
  out["object"] = "file";
  out["bytes"] = file.bytes;
  out["created_at"] = file.created_at;
  out["filename"] = file.filename;
  out["purpose"] = file.purpose;
  out["status"] = "processed";
  if (file.expires_at) out["expires_at"] = *file.expires_at;
  return out.dump();
}

std::shared_ptr<BodySink> OpenFileBody(const HandlerContext& context, const Request& head,
                                       std::function<void()> has_room) {
  return OpenForm(context, head, std::move(has_room));
}

namespace {

// POST /v1/files
void CreateFile(const HandlerContext& context, Request request, ResponseWriter writer) {
  std::shared_ptr<FormUpload> upload;
  if (request.body_sink) {
    upload = std::static_pointer_cast<FormUpload>(request.body_sink);  // set by OpenFileBody
  } else {
    upload = OpenForm(context, request, {});
    upload->Write(request.body);
  }
  FileStore& files = RequireFiles(context);
  upload->Finish(
      [&files, writer, owner = OwnerOf(request)](UploadedForm form) {
        NewFile about = CheckForm(form);
        about.owner = owner;
        if (!form.unknown.empty()) {
          writer.AddHeader("x-ignored-params", IgnoredParamsHeader(form.unknown));
        }
        writer.Json(200, FileBody(files.Add(std::move(*form.file), about)));
      },
      [writer](std::exception_ptr fault) {
        // The posted task keeps the writer alive: a request without a writer counts as abandoned.
        writer.Post([writer, fault = std::move(fault)] { std::rethrow_exception(fault); });
      });
}

// GET /v1/files
void ListFiles(const HandlerContext& context, Request request, ResponseWriter writer) {
  FileFilter filter;
  if (const std::string* purpose = request.FindQuery(kPurpose)) {
    const bool is_result = std::find(kResultPurposes.begin(), kResultPurposes.end(), *purpose) !=
                           kResultPurposes.end();
    if (!IsUploadPurpose(*purpose) && !is_result) throw BadPurpose(*purpose);
    filter.purpose = *purpose;
  }
  filter.limit = static_cast<size_t>(QueryInt(request, "limit", 10000, 1, 10000));
  filter.oldest_first = QueryOrder(request, Order::kNewestFirst) == Order::kOldestFirst;
  if (const std::string* after = request.FindQuery("after")) filter.after = *after;
  filter.viewer = ViewerOf(context, request);
  const FilePage page = RequireFiles(context).List(filter);

  // A page may hold 10,000 files: join their texts instead of parsing each again.
  std::string body = "{\"object\":\"list\",\"data\":[";
  for (const StoredFile& file : page.files) {
    if (body.back() == '}') body += ",";
    body += FileBody(file);
  }
  Json rest;
  rest["first_id"] = page.files.empty() ? Json() : Json(page.files.front().id);
  rest["last_id"] = page.files.empty() ? Json() : Json(page.files.back().id);
  rest["has_more"] = page.has_more;
  body += "]," + rest.dump().substr(1);
  writer.Json(200, std::move(body));
}

Error FileNotFound(const std::string& id) {
  return Error(ErrorCode::kNotFound, "there is no file '" + id.substr(0, 80) + "'")
      .WithParam("id")
      .WithReason("file_not_found");
}

// The file of the path. Another key's file is answered like one that does not exist.
StoredFile FindFile(const HandlerContext& context, const Request& request) {
  const std::string& id = request.path_params.at("id");
  std::optional<StoredFile> file = RequireFiles(context).Find(id);
  if (!file || !MaySee(ViewerOf(context, request), file->owner)) throw FileNotFound(id);
  return std::move(*file);
}

// GET /v1/files/{id}
void GetFile(const HandlerContext& context, Request request, ResponseWriter writer) {
  writer.Json(200, FileBody(FindFile(context, request)));
}

// DELETE /v1/files/{id}
void DeleteFile(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string id = FindFile(context, request).id;
  RequireFiles(context).Delete(id);
  writer.Json(200, Json{{"id", id}, {"object", "file"}, {"deleted", true}}.dump());
}

// GET /v1/files/{id}/content
void GetFileContent(const HandlerContext& context, Request request, ResponseWriter writer) {
  FileStore& files = RequireFiles(context);
  const StoredFile file = FindFile(context, request);
  const int64_t bytes = file.bytes;

  Response head;
  head.content_type = "application/octet-stream";
  head.headers = {{"x-content-type-options", "nosniff"}, {"accept-ranges", "bytes"}};
  const std::string* asked = request.FindHeader("range");
  // Files have no validator (ETag or date), so If-Range never matches: send the whole file.
  const bool is_conditional = request.FindHeader("if-range") != nullptr;
  ByteRange range{0, bytes};
  if (asked != nullptr && !is_conditional) {
    const RangeAnswer answer = ParseRange(*asked, bytes);
    if (answer.kind == RangeAnswer::Kind::kUnsatisfiable) {
      writer.AddHeader("content-range", "bytes */" + std::to_string(bytes));
      throw Error(
          ErrorCode::kInvalidArgument,
          "the range is beyond the end of the file, which has " + std::to_string(bytes) + " bytes")
          .WithParam("range")
          .WithReason("range_not_satisfiable");
    }
    if (answer.kind == RangeAnswer::Kind::kPart) {
      range = answer.range;
      head.status = 206;
      head.headers.emplace_back("content-range",
                                "bytes " + std::to_string(range.offset) + "-" +
                                    std::to_string(range.offset + range.bytes - 1) + "/" +
                                    std::to_string(bytes));
    }
  }
  // On a thread that may wait for the disk, or for the object store.
  const bool is_posted = files.Post([&files, id = file.id, range, head = std::move(head), writer] {
    const std::exception_ptr fault = FaultOf([&] {
      FileDownload::Start(files, files.Open(id).fd, range.offset, range.bytes, head, writer);
    });
    if (fault) writer.Post([writer, fault] { std::rethrow_exception(fault); });
  });
  if (!is_posted) throw Error(ErrorCode::kUnavailable, "the server is stopping");
}

}  // namespace

std::span<const Endpoint> FileEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST",
       .pattern = "/v1/files",
       .handle = CreateFile,
       .access = Access::kTrainKey,
       .open_body = OpenFileBody},
      {"GET", "/v1/files", ListFiles, Access::kTrainKey},
      {"GET", "/v1/files/{id}", GetFile, Access::kTrainKey},
      {"DELETE", "/v1/files/{id}", DeleteFile, Access::kTrainKey},
      {"GET", "/v1/files/{id}/content", GetFileContent, Access::kTrainKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
