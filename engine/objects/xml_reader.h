#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// An element of a response of an object store.
struct XmlElement {
  std::string name;  // without a namespace prefix
  std::string text;  // of the element itself, entities replaced
  std::vector<XmlElement> children;

  // The first child with this name; null when there is none.
  const XmlElement* Find(std::string_view child) const;
  // Text of the first child with this name; empty when there is none.
  std::string TextOf(std::string_view child) const;
};

// Parses the XML that object stores send: elements, text, the five named entities and character
// references. Attributes are skipped. Throws kDataLoss for document types, CDATA sections, more
// than 16 levels, more than 100,000 elements, and for every fault of the syntax.
XmlElement ParseXml(std::string_view text);

// The text for a document's element.
std::string XmlEscaped(std::string_view text);

}  // namespace tandem::engine
