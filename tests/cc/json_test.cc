#include "cc/core/scorer/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace twml::scorer {
namespace json_test {

Json Parsed(const std::string& text) {
  Json json;
  EXPECT_EQ(Json::Parse(text, &json).message(), "") << text;
  return json;
}

std::string ErrorOf(const std::string& text) {
  Json json;
  const std::string message = Json::Parse(text, &json).message();
  const std::string head = "byte ", middle = " of the JSON text: expected ";
  const size_t at = message.find(middle);
  if (message.rfind(head, 0) != 0 || at == message.npos) return message;
  return message.substr(head.size(), at - head.size()) + ": " + message.substr(at + middle.size());
}

TEST(Json, SpaceBetweenTokensChangesNothing) {
  const char* const tokens[] = {"{", "\"b\"", ":", "[", "1",     ",", "[",    "]", ",",
                                "{", "}",     "]", ",", "\"a\"", ":", "true", "}"};
  for (const std::string space : {"", " ", "\n", "\r", "\t", " \n\t\r  "}) {
    std::string text = space;
    for (const char* token : tokens) text += token + space;
    const Json json = Parsed(text);
    ASSERT_EQ(json.members().size(), 2) << text;
    EXPECT_EQ(json.members()[0].first, "b");
    ASSERT_EQ(json.Find("b")->items().size(), 3);
    EXPECT_EQ(json.Find("b")->items()[0].integer(), 1);
    EXPECT_TRUE(json.Find("b")->items()[1].is(Json::Kind::kArray));
    EXPECT_TRUE(json.Find("b")->items()[2].is(Json::Kind::kObject));
    EXPECT_TRUE(json.Find("a")->boolean());
    EXPECT_EQ(json.Find("c"), nullptr);
  }
  EXPECT_EQ(ErrorOf("1\v"), "1: the end of the text");
}

TEST(Json, NumbersHaveTheirKindAndTheirBits) {
  EXPECT_EQ(Parsed("-9223372036854775808").integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Parsed("9223372036854775807").integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ErrorOf("[9223372036854775808]"), "1: an integer of 64 bits");
  for (const char* text : {"0", "-0", "10", "-7"}) {
    EXPECT_TRUE(Parsed(text).is(Json::Kind::kInteger)) << text;
    EXPECT_EQ(Parsed(text).number(), std::stod(text));
  }
  for (const char* text : {"0.5", "-0.0", "1e3", "1E-3", "2.5e+10", "1.7976931348623157e308"}) {
    EXPECT_TRUE(Parsed(text).is(Json::Kind::kNumber)) << text;
    EXPECT_EQ(Parsed(text).number(), std::stod(text)) << text;
  }
  EXPECT_EQ(ErrorOf("1e400"), "0: a number in the range of a double");
  EXPECT_TRUE(std::isnan(Parsed("NaN").number()));
  EXPECT_EQ(Parsed("Infinity").number(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Parsed("-Infinity").number(), -std::numeric_limits<double>::infinity());
  for (const char* text : {"01", "-01", "-", "+1", ".5", "", "nul", "a"}) {
    EXPECT_EQ(ErrorOf(text), "0: a value") << text;
  }
  EXPECT_EQ(ErrorOf("1."), "2: a digit");
  EXPECT_EQ(ErrorOf("1e+-1"), "3: a digit");
}

TEST(Json, EscapesAreTheCharactersThatTheyName) {
  EXPECT_EQ(Parsed(R"("\"\\\/\b\f\n\r\t")").string(), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(Parsed(R"("\u0041\u007f\u0080\u07ff\u0800\uFFff")").string(),
            "A\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf");
  EXPECT_EQ(Parsed(R"("\ud800\udc00\uDBFF\uDFFF")").string(), "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
  for (const char* text :
       {R"("\udc00")", R"("\ud800")", R"("\ud800\ud800")", R"("\ud800\ue000")"}) {
    EXPECT_NE(ErrorOf(text).find("a pair of surrogates"), std::string::npos) << text;
  }
  for (const char* text : {R"("\x")", R"("\u00g0")", R"("\u000`")", R"("\u12)", "\"\\"}) {
    EXPECT_NE(ErrorOf(text).find("an escape sequence"), std::string::npos) << text;
  }
  EXPECT_EQ(ErrorOf("\"a\nb\""), "2: no control characters in a string");
  EXPECT_EQ(ErrorOf("\"ab"), "3: the end of a string");
}

TEST(Json, WhatIsMissingOrTooMuchIsNamedWithItsPlace) {
  EXPECT_EQ(ErrorOf("[1 2]"), "3: ',' or ']'");
  EXPECT_EQ(ErrorOf("[1,]"), "3: a value");
  EXPECT_EQ(ErrorOf("{\"a\" 1}"), "5: ':'");
  EXPECT_EQ(ErrorOf("{\"a\": 1 2}"), "8: ',' or '}'");
  EXPECT_EQ(ErrorOf("{\"a\": 1,}"), "8: the name of a member");
  EXPECT_EQ(ErrorOf("{} {}"), "3: the end of the text");
  EXPECT_EQ(ErrorOf(" {\"a\": 1, \"b\": 2, \"a\": 3}"),
            "1: members with distinct names, got 'a' twice");
}

TEST(Json, ValuesAreNestedAtMost32Deep) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(Parsed(nested(33)).is(Json::Kind::kArray));
  EXPECT_EQ(ErrorOf(nested(34)), "33: at most 32 nested values");
}

}  // namespace json_test
}  // namespace twml::scorer
