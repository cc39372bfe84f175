FROM python:3.11-slim
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY service service
COPY queries queries
RUN pip install --no-cache-dir -c constraints.txt . \
 && useradd --create-home --uid 10001 muster \
 && install -d -o muster /state
USER muster
WORKDIR /home/muster
CMD ["muster", "--help"]
