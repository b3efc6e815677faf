#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/files/file_store.h"
#include "server/files/temporary_file.h"
#include "server/http/body_sink.h"
#include "server/http/syntax/multipart_parser.h"

namespace tandem::server {

// The content of a form.
struct UploadedForm {
  bool has_file_part = false;           // the form has a part named "file"
  std::optional<std::string> filename;  // as sent by the client; absent: the part has no filename
  std::optional<TemporaryFile> file;    // the part's bytes, if it has a filename
  std::map<std::string, std::string> fields;
  std::vector<std::string> unknown;  // names of unexpected parts
};

// Writes a multipart form to disk. The io thread only hands over bytes; the store's threads parse
// and write. Holds at most kMaxWaiting bytes plus one read. A fault of the form is kept until the
// end of the body. An upload destroyed earlier leaves no file.
class FormUpload : public BodySink, public std::enable_shared_from_this<FormUpload> {
 public:
  static constexpr size_t kMaxWaiting = 256 << 10;
  static constexpr size_t kMaxFieldBytes = 1 << 10;

  // `fields` names the parts wanted besides "file". Throws kInvalidArgument for a content type
  // other than a form (unsupported_media_type) or without a usable boundary. BodySink describes
  // `has_room`. The store must outlive the upload.
  static std::shared_ptr<FormUpload> Open(FileStore& store, std::string_view content_type,
                                          std::vector<std::string> fields,
                                          std::function<void()> has_room);

  bool Write(std::string_view bytes) override;

  // Call once, when the body is complete. Calls `on_form` on one of the store's threads when the
  // form is parsed. A fault of the form, or an exception of `on_form`, goes to `on_fault`.
  void Finish(std::function<void(UploadedForm)> on_form,
              std::function<void(std::exception_ptr)> on_fault);

 private:
  FormUpload(FileStore& store, std::string_view boundary, std::vector<std::string> fields,
             std::function<void()> has_room);

  void PostPump();
  void Pump();
  // Called by the pumping thread, one at a time.
  void Consume(std::string_view bytes);
  void OnPart(const PartHead& head);
  void OnData(std::string_view bytes);
  void End();

  FileStore& store_;
  const std::vector<std::string> wanted_;
  const std::function<void()> has_room_;

  std::mutex mutex_;  // guards the next five
  std::string waiting_;
  bool is_pumping_ = false;
  bool wants_room_ = false;
  std::function<void(UploadedForm)> on_form_;
  std::function<void(std::exception_ptr)> on_fault_;

  // Used by the pumping thread only.
  MultipartParser parser_;
  UploadedForm form_;
  std::string* field_ = nullptr;  // the current part's field; null: the part is not a field
  bool is_in_file_ = false;
  std::exception_ptr fault_;
};

}  // namespace tandem::server
